// SPDX-License-Identifier: MIT

package report

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

// renderers are all that write a run to a writer.
var renderers = map[string]func(io.Writer, *verdict.Run) error{
	"results.json": WriteJSON,
	"junit.xml":    WriteJUnit,
	"kernel.log":   WriteLogs,
	"report.txt": func(w io.Writer, r *verdict.Run) error {
		return WriteText(w, r, TextOptions{})
	},
	"verbose.txt": func(w io.Writer, r *verdict.Run) error {
		return WriteText(w, r, TextOptions{Width: 120, Color: true, Verbose: true})
	},
}

func render(t *testing.T, name string, run *verdict.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := renderers[name](&b, run); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// guestLog makes the log of one guest.
type guestLog struct {
	t   *testing.T
	seq uint64
	at  time.Duration
}

func (g *guestLog) record(facility uint8, text string) klog.Record {
	r := klog.Record{Seq: g.seq, Level: 6, Facility: facility, Time: g.at, Text: text}
	g.seq++
	g.at += 137 * time.Microsecond
	return r
}

func (g *guestLog) kernel(texts ...string) (log []klog.Record) {
	for _, s := range texts {
		log = append(log, g.record(0, s))
	}
	return log
}

// test frames records with the markers of a test.
func (g *guestLog) test(name string, inside func() []klog.Record) []klog.Record {
	log := []klog.Record{g.record(1, "patchbay: start "+suiteOf(name)+"/"+name)}
	if inside != nil {
		log = append(log, inside()...)
	}
	return append(log, g.record(1, "patchbay: end "+suiteOf(name)+"/"+name))
}

// splat takes a log that klog knows; console makes its last lines ones that
// only the console had.
func (g *guestLog) splat(name string, console int) []klog.Record {
	g.t.Helper()
	f, err := os.Open(filepath.Join("..", "klog", "testdata", "splats", name+".log"))
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	log, err := klog.ParseConsole(f)
	if err != nil {
		g.t.Fatal(err)
	}
	log = log[1:] // the licence
	for i := range log {
		r := g.record(0, log[i].Text)
		r.Level, r.Caller = 4, log[i].Caller
		if i >= len(log)-console {
			r.Seq, r.Level = 0, klog.LevelUnknown
		}
		log[i] = r
	}
	return log
}

func suiteOf(test string) string {
	if strings.HasPrefix(test, "TestCPU") {
		return "cpuaffinity"
	}
	return "sockmapbasic"
}

// sample is a run in which everything happened.
func sample(t *testing.T) *verdict.Run {
	t.Helper()
	g := &guestLog{t: t}
	boot := g.kernel("Linux version 6.12.117", "Command line: console=hvc0", "clocksource: tsc")
	tests := []verdict.Test{
		{Name: "TestSockmapBasic/sockmap_create_update_free", Outcome: verdict.Pass, Duration: 31 * time.Millisecond, Output: "4 of 4\n", Log: g.test("TestSockmapBasic/sockmap_create_update_free", nil)},
		{Name: "TestSockmapBasic/sockmap_copy", Outcome: verdict.Pass, Duration: 120 * time.Millisecond, Log: g.test("TestSockmapBasic/sockmap_copy", func() []klog.Record { return g.splat("warning-new", 0) })},
		{
			Name: "TestSockmapBasic/sockmap_skb_verdict_fionread", Outcome: verdict.Fail, Duration: 1500 * time.Millisecond,
			Reason: "data_test.go:131: FIONREAD on the peer: got 0 bytes, want 256, although the whole of the message was written",
			Output: "    data_test.go:120: sent 256 bytes\n    data_test.go:131: FIONREAD on the peer: got 0 bytes, want 256, although the whole of the message was written\n",
			Log:    g.test("TestSockmapBasic/sockmap_skb_verdict_fionread", func() []klog.Record { return g.kernel("loop: module loaded") }),
		},
		{Name: "TestSockmapBasic/sockmap_skb_verdict_peek", Outcome: verdict.Splat, Duration: 80 * time.Millisecond, Log: g.test("TestSockmapBasic/sockmap_skb_verdict_peek", func() []klog.Record {
			return append(g.kernel("TCP: something before"), g.splat("kasan", 0)...)
		})},
		{Name: "TestPanics", Outcome: verdict.Timeout, Duration: 0, Reason: "no end within the test deadline of 15s", Output: "waiting\npanic: test killed\n\ngoroutine 1 [running]:\n" + strings.Repeat("frame()\n", 50), Log: []klog.Record{g.record(1, "patchbay: start sockmapbasic/TestPanics")}},
		{Name: "TestCPU/verdict_redirect", Outcome: verdict.Skip, Reason: "affinity_test.go:20: this kernel has no sockmap CPU affinity", Duration: time.Millisecond, Log: g.test("TestCPU/verdict_redirect", nil)},
		{Name: "TestCPU/backlog", Outcome: verdict.Crash, Log: append([]klog.Record{g.record(1, "patchbay: start cpuaffinity/TestCPU/backlog")}, g.splat("null-deref-fatal", 5)...)},
	}
	for i := range tests {
		tests[i].Suite = suiteOf(tests[i].Name)
	}
	// The second guest counts from 0 again.
	g = &guestLog{t: t}
	again := g.kernel("Linux version 6.12.117", "Command line: console=hvc0")
	tests = append(tests,
		verdict.Test{Suite: "cpuaffinity", Name: "TestCPU/hotplug", Outcome: verdict.Lost, Reason: "the guest went away: QEMU ended", Log: append([]klog.Record{g.record(1, "patchbay: start cpuaffinity/TestCPU/hotplug")}, g.kernel("smpboot: CPU 1 is now offline")...)},
		verdict.Test{Suite: "cpuaffinity", Name: "TestCPU/many", Outcome: verdict.NotRun, Reason: "it was planned and never started"},
		verdict.Test{Suite: "cpuaffinity", Name: "TestCPU/few", Outcome: verdict.NotRun, Reason: "it was planned and never started"},
	)
	for i := range tests {
		one := &tests[i]
		one.Splats = klog.Detect(one.Log)
		if one.Outcome == verdict.Pass {
			for k := range one.Splats {
				one.Splats[k].Allowed = "known upstream (https://example.org/1)"
			}
		}
		if one.Reason == "" && !one.Outcome.Good() {
			one.Reason = one.Splats[0].Title
		}
	}
	fault1 := verdict.NewFailure(&fault.Error{
		Blame: fault.Kernel, Doing: "compiling the kernel", Subject: "net/core/skmsg.o", Err: errors.New("make failed"),
		Said: "net/core/skmsg.c:1234:9: error: 'no_such_name' undeclared (first use in this function)\n 1234 |         no_such_name = 1;\n      |         ^~~~~~~~~~~~",
		Next: "the whole log is in build.log",
	})
	fault2 := verdict.NewFailure(&fault.Error{Blame: fault.Harness, Doing: "starting vng", Err: errors.New("no such file"), Next: "bin/setup"})
	g = &guestLog{t: t}
	panicked := append(g.kernel("Linux version 6.12.117"), g.splat("kernel-bug", 0)...)
	run := &verdict.Run{
		Schema: verdict.SchemaVersion, ID: "20261204-024600", Started: time.Date(2026, 12, 4, 2, 46, 0, 0, time.UTC), Duration: 12345 * time.Millisecond,
		Command:  []string{"patchbay", "run", "--series", "sockmap-cpu-affinity"},
		Host:     verdict.Host{Name: "box", OS: "Debian GNU/Linux 13", Kernel: "6.12.1", CPUs: 2, Memory: 8 << 30, KVMError: "no /dev/kvm"},
		Versions: map[string]string{"qemu": "10.0.2", "vng": "1.37"},
		Cells: []verdict.Cell{
			{
				ID: "v6.12+sockmap-cpu-affinity/default", Base: "v6.12", Source: "v6.12: 6.12.117, Debian linux-source-6.12", Series: []string{"sockmap-cpu-affinity"},
				Patches: []verdict.Patch{{Subject: "bpf: sockmap CPU affinity", Author: "A B <a@example.org>", Commit: "0123456789"}},
				Config:  "default", Commit: "0123456789", Tree: "abcdef", Artifact: "6.12-x86-0011", Kernel: "6.12.117-patchbay", Accel: "tcg", CPUs: 4, Memory: 1 << 30, Boots: 2,
				Outcome: verdict.Crash, Reason: "cpuaffinity/TestCPU/backlog: " + tests[6].Reason,
				Phases: []verdict.Phase{
					{Name: "source", Duration: 310 * time.Millisecond},
					{Name: "kernel", Duration: 20 * time.Millisecond, Cached: true},
					{Name: "boot", Duration: 2200 * time.Millisecond},
					{Name: "tests", Duration: 9 * time.Second},
				},
				Tests: tests, Log: append(boot, again...),
				Trouble: []string{"4 kernel log records were overwritten before they could be read", "agent: cannot mount debugfs"},
				VNG:     []string{"vng", "--run", "bzImage"}, QEMU: []string{"qemu-system-x86_64"},
			},
			{ID: "v6.12+bad/default", Base: "v6.12", Source: "v6.12", Config: "default", Accel: "tcg", CPUs: 4, Memory: 1 << 30, Boots: 1, Outcome: verdict.Boot, Reason: klog.Detect(panicked)[0].Title, Log: panicked, Splats: klog.Detect(panicked), Tests: []verdict.Test{}},
			{ID: "v6.12+broken/default", Base: "v6.12", Source: "v6.12", Config: "default", Accel: "tcg", CPUs: 4, Memory: 1 << 30, Outcome: verdict.Build, Reason: fault1.Message[:20], Failure: fault1, Tests: []verdict.Test{}},
			{ID: "v6.12/default", Base: "v6.12", Source: "v6.12", Config: "default", CPUs: 1, Memory: 1 << 30, Outcome: verdict.Infra, Reason: "starting vng", Failure: fault2, Tests: []verdict.Test{}},
		},
	}
	c := &run.Cells[0]
	c.KernelLog = slices.Concat(lines(1, boot, tests[:7]), lines(2, again, tests[7:]))
	run.Cells[1].KernelLog = lines(1, panicked, nil)
	run.ExitCode = run.Exit()
	return run
}

// lines is the log of one guest: its boot, then its tests.
func lines(guest int, boot []klog.Record, tests []verdict.Test) (all []verdict.LogLine) {
	add := func(log []klog.Record, splats []klog.Splat, suite, test string) {
		for i, r := range log {
			l := verdict.LogLine{Record: r, Boot: guest, Suite: suite, Test: test}
			for _, s := range splats {
				if s.First == i {
					l.Splats = append(l.Splats, s)
				}
			}
			all = append(all, l)
		}
	}
	add(boot, klog.Detect(boot), "", "")
	for i := range tests {
		add(tests[i].Log, tests[i].Splats, tests[i].Suite, tests[i].Name)
	}
	return all
}

// good is the run that everybody hopes for.
func good(t *testing.T) *verdict.Run {
	run := sample(t)
	run.Cells = run.Cells[:1]
	c := &run.Cells[0]
	c.Outcome, c.Reason, c.Boots, c.Trouble = verdict.Pass, "", 1, nil
	c.Tests = []verdict.Test{c.Tests[0], c.Tests[1], c.Tests[5]}
	run.ExitCode = run.Exit()
	return run
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: (-want +got), -update accepts it:\n%s", name, diff)
	}
}

func TestGolden(t *testing.T) {
	for name := range renderers {
		t.Run(name, func(t *testing.T) {
			golden(t, name, render(t, name, sample(t)))
			if strings.HasSuffix(name, ".txt") {
				golden(t, "good-"+name, render(t, name, good(t)))
			}
		})
	}
}

// The kernel log has markers, not outcomes, of tests; those of cells it has.
func TestEveryOutcomeShows(t *testing.T) {
	run := sample(t)
	for name := range renderers {
		text := strings.ToLower(render(t, name, run))
		for _, o := range verdict.Outcomes() {
			if name == "kernel.log" && o < verdict.Crash {
				continue
			}
			if !strings.Contains(text, o.String()) {
				t.Errorf("%s does not show %v", name, o)
			}
		}
		for _, c := range run.Cells {
			if !strings.Contains(text, strings.ToLower(c.ID)) {
				t.Errorf("%s does not name %s", name, c.ID)
			}
			for _, one := range c.Tests {
				if last := one.Name[strings.LastIndexByte(one.Name, '/')+1:]; (name != "kernel.log" || len(one.Log) > 0) && !strings.Contains(text, strings.ToLower(last)) {
					t.Errorf("%s does not name %s", name, one.Name)
				}
			}
		}
	}
}

// hostile is what a guest might say to a terminal, an XML parser and a screen.
var hostile = "\x1b]0;owned\x07\x1b[2J\r\n# outside any test\n\x00\xff\xfe]]><x>&\u202e\u009b31m\ufffe\U000e0001" + strings.Repeat("long ", 500)

// fill sets everything that can be reached to something.
func fill(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text, n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text, n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, text, n)
		v.SetMapIndex(reflect.ValueOf(text), value)
	case reflect.Struct:
		if _, ok := v.Interface().(time.Time); ok {
			v.Set(reflect.ValueOf(time.Unix(1e9, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), text, n)
		}
	default:
		panic("fill: " + v.Kind().String())
	}
}

func filled(text string) *verdict.Run {
	var run verdict.Run
	fill(reflect.ValueOf(&run).Elem(), text, 1)
	// A record's index within its log of one.
	c := &run.Cells[0]
	c.Splats[0].First, c.Splats[0].Last = 0, 0
	c.Tests[0].Splats[0].First, c.Tests[0].Splats[0].Last = 0, 0
	// Time is kept as whole microseconds.
	c.Log[0].Time, c.Tests[0].Log[0].Time = time.Microsecond, time.Microsecond
	c.KernelLog = append(c.KernelLog, verdict.LogLine{Record: c.Log[0], Boot: 1})
	return &run
}

// unsafeRune finds what must not get to a terminal.
func unsafeRune(text string, color bool) string {
	if !utf8.ValidString(text) {
		return "invalid UTF-8"
	}
	if color {
		for _, code := range []string{"0", "1", "2", "31", "1;31", "32", "33"} {
			text = strings.ReplaceAll(text, "\x1b["+code+"m", "")
		}
	}
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			return fmt.Sprintf("%U", r)
		}
	}
	return ""
}

func TestHostileOutput(t *testing.T) {
	for name := range renderers {
		for o := range verdict.Outcomes() {
			for _, allowed := range []string{"", hostile} {
				run := filled(hostile)
				c := &run.Cells[0]
				c.Outcome, c.Tests[0].Outcome = verdict.Outcomes()[o], verdict.Outcomes()[o]
				c.Splats[0].Allowed, c.Tests[0].Splats[0].Allowed = allowed, allowed
				if allowed != "" {
					c.Failure = nil
				}
				text := render(t, name, run)
				if found := unsafeRune(strings.ReplaceAll(text, "\t", ""), name == "verbose.txt"); found != "" {
					t.Errorf("%s, %v: it has %s", name, verdict.Outcomes()[o], found)
				}
				if name == "kernel.log" && strings.Count(text, "\n# outside any test\n") != 1 {
					t.Error("a record was taken for a heading")
				}
				for line := range strings.Lines(text) {
					if strings.HasSuffix(name, ".txt") && len(line) > 10*longLine {
						t.Errorf("%s: a line of %d bytes", name, len(line))
					}
				}
			}
		}
	}
	if unsafeRune("a\x1b[2J", true) == "" || unsafeRune("\u202e", false) == "" || unsafeRune("\xff", false) == "" {
		t.Error("this test finds nothing")
	}
}

// full fails after so many bytes.
type full int

var errFull = errors.New("no space left")

func (s *full) Write(p []byte) (int, error) {
	n := min(len(p), int(*s))
	*s -= full(n)
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func TestFailingWriter(t *testing.T) {
	run := sample(t)
	for name, write := range renderers {
		size := len(render(t, name, run))
		for _, n := range []int{0, 1, size / 2, size - 1, size} {
			w := full(n)
			if err := write(&w, run); (n < size) != errors.Is(err, errFull) {
				t.Errorf("%s: %v after %d of %d bytes", name, err, n, size)
			}
		}
	}
}

func TestWriteAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "résults of it")
	run := sample(t)
	err := WriteAll(dir, run)
	var many *multierror.Error
	if !errors.As(err, &many) || len(many.Errors) != 3 {
		t.Fatalf("a missing folder: %v", err)
	}
	for _, err := range many.Errors {
		var f *fault.Error
		if !errors.As(err, &f) || f.Blame != fault.Harness || f.Next == "" {
			t.Errorf("%#v", err)
		}
	}
	// One that cannot be written leaves the others alone.
	if err := os.MkdirAll(filepath.Join(dir, "junit.xml", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteAll(dir, run); err == nil || !strings.Contains(err.Error(), "junit.xml") || strings.Contains(err.Error(), "kernel.log") {
		t.Errorf("a file in the way: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*.*")); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	// A run that has no JSON form leaves the old file alone.
	before, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	broken := *run
	broken.Cells = []verdict.Cell{{}}
	if err := os.RemoveAll(filepath.Join(dir, "junit.xml")); err != nil {
		t.Fatal(err)
	}
	if err := WriteAll(dir, &broken); err == nil || !strings.Contains(err.Error(), "results.json") {
		t.Errorf("no outcome: %v", err)
	}
	after, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the old results are gone: %v", err)
	}
	if err := WriteAll(dir, run); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"junit.xml", "kernel.log", "results.json"}, names); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
