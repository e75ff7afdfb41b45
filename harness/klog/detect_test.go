// SPDX-License-Identifier: MIT

package klog

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func readConsole(t testing.TB, path string) []Record {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	records, err := ParseConsole(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func logFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no logs in testdata/%s: %v", dir, err)
	}
	return files
}

func detectWith(tab *table, log []Record) []Splat {
	d := newDetector(tab)
	for _, r := range log {
		d.Add(r)
	}
	return d.Splats()
}

// show prints splats as the golden files hold them.
func show(splats []Splat) string {
	var b strings.Builder
	b.WriteString("# SPDX-License-Identifier: MIT\n")
	for _, s := range splats {
		fmt.Fprintf(&b, "%s: %s\n\tline: %s\n\trecords: %d-%d, caller %q", s.Kind, s.Title, s.Line, s.First, s.Last, s.Caller)
		if s.Fatal {
			b.WriteString(", fatal")
		}
		if s.Incomplete {
			b.WriteString(", incomplete")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func checkGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", path, diff)
	}
}

func TestGoldenLogs(t *testing.T) {
	for _, file := range logFiles(t, "splats") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			checkGolden(t, strings.TrimSuffix(file, ".log")+".golden", show(Detect(readConsole(t, file))))
		})
	}
}

func TestLookAlikes(t *testing.T) {
	for _, file := range logFiles(t, "lookalikes") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if splats := Detect(readConsole(t, file)); len(splats) != 0 {
				t.Errorf("taken for splats:\n%s", show(splats))
			}
		})
	}
}

// Every kind, and every one of its headlines, must be proved by a golden log
// that is named after it, and taking it out of the table must be noticed.
func TestEveryKindHasAGoldenLog(t *testing.T) {
	logs := map[string][]Record{}
	for _, file := range logFiles(t, "splats") {
		logs[strings.TrimSuffix(filepath.Base(file), ".log")] = readConsole(t, file)
	}
	for i, k := range builtIn().kinds {
		t.Run(k.Name, func(t *testing.T) {
			var all []string // every line of its own golden logs that was taken for its headline
			own := map[string][]Record{}
			for name, log := range logs {
				if name == k.Name || strings.HasPrefix(name, k.Name+"-") {
					own[name] = log
				}
			}
			seen := false
			for _, log := range own {
				for _, s := range Detect(log) {
					seen = seen || s.Kind == k.Name
				}
				for _, r := range log {
					if m, _ := builtIn().match(r.Text); r.Facility == 0 && m != nil && m.Name == k.Name {
						all = append(all, r.Text)
					}
				}
			}
			if !seen {
				t.Fatalf("no golden log testdata/splats/%s*.log has such a splat", k.Name)
			}
			for j, h := range k.Headlines {
				re := regexp.MustCompile(`^(?:` + h + `)`)
				earlier := func(line string) bool {
					return slices.ContainsFunc(k.Headlines[:j], func(e string) bool {
						return regexp.MustCompile(`^(?:` + e + `)`).MatchString(line)
					})
				}
				if !slices.ContainsFunc(all, func(line string) bool { return re.MatchString(line) && !earlier(line) }) {
					t.Errorf("no golden log proves the headline %q", h)
				}
			}
			without, err := loadKinds(kindsYAML)
			if err != nil {
				t.Fatal(err)
			}
			gone := without.kinds[i]
			for b := range without.byFirst {
				without.byFirst[b] = slices.DeleteFunc(without.byFirst[b], func(h headline) bool { return h.kind == gone })
			}
			for _, log := range own {
				for _, s := range detectWith(without, log) {
					if s.Kind == k.Name {
						t.Errorf("still found without the kind: %+v", s)
					}
				}
			}
		})
	}
}

// The same splat in another run: other pids, CPUs, addresses, offsets, times.
func TestTitlesAreTheSameInTwoRuns(t *testing.T) {
	swap := strings.NewReplacer(
		"ffff888006b5", "ffff88810c3f", "+0x", "+0x1", "/0x", "/0x2", "CPU: 1", "CPU: 3", "PID: 412", "PID: 20031",
		"CPU#1", "CPU#3", "/412", "/20031", ":412", ":20031", "kworker/1:2", "kworker/3:0", ":57", ":191", "[57]", "[191]",
		"cpu 1", "cpu 3", "cpus=1", "cpus=3", " 26s", " 51s", " 34s", " 61s", "skmsg.c:844", "skmsg.c:851", "skbuff.c:207", "skbuff.c:209",
		"T412", "T20031", "jiffies g=1421", "jiffies g=99", "veth3f21", "veth9a02", "pfn:06b54", "pfn:0c3f1", "val:3", "val:-1",
		"0xdffffc0000000003", "0xdffffc0000000023", "7f0000000", "7f1234567", ": 2 new", ": 17 new", "skmsg.c:131:14", "skmsg.c:133:9",
		"sock.c:3664", "sock.c:3660", ".constprop.0", ".constprop.1", "Tainted: G        W         ", "Tainted: G    B   W         ",
		"ffff8e\n", "ffff9c\n", "for 10 seconds", "for 22 seconds", "exitcode=0x0000000b", "exitcode=0x00000009",
	)
	for _, file := range logFiles(t, "splats") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		other, err := ParseConsole(strings.NewReader(swap.Replace(string(data))))
		if err != nil {
			t.Fatal(err)
		}
		titles := func(splats []Splat) (titles []string) {
			for _, s := range splats {
				titles = append(titles, s.Title)
			}
			return titles
		}
		if diff := cmp.Diff(titles(Detect(readConsole(t, file))), titles(Detect(other))); diff != "" {
			t.Errorf("%s: titles differ (-one +other):\n%s", file, diff)
		}
	}
}

// Reports of several callers, line by line in turn, come out like alone.
func TestInterleavedReportsAreUntangled(t *testing.T) {
	one := readConsole(t, "testdata/splats/kasan.log")[1:]              // T57
	two := readConsole(t, "testdata/splats/sleeping-in-atomic.log")[1:] // T412
	three := readConsole(t, "testdata/splats/null-deref-fatal.log")[1:] // C1
	var mixed []Record
	for i := range max(len(one), len(two), len(three)) {
		mixed = append(mixed, Record{Facility: 1, Caller: "T57", Text: "BUG: from user space"})
		for _, log := range [][]Record{one, two, three} {
			if i < len(log) {
				mixed = append(mixed, log[i])
			}
		}
	}
	splats := Detect(mixed)
	for _, log := range [][]Record{one, two, three} {
		want := Detect(log)[0]
		i := slices.IndexFunc(splats, func(s Splat) bool { return s.Kind == want.Kind })
		if i < 0 {
			t.Fatalf("%s is missing in %+v", want.Kind, splats)
		}
		got := splats[i]
		if got.Title != want.Title || got.Fatal != want.Fatal || got.Incomplete != want.Incomplete {
			t.Errorf("got %+v, alone %+v", got, want)
		}
		if diff := cmp.Diff(want.Records(log), got.Records(mixed)); diff != "" {
			t.Errorf("%s: other records (-alone +mixed):\n%s", got.Kind, diff)
		}
	}
	if len(splats) != 3 {
		t.Errorf("%d splats, want 3: %+v", len(splats), splats)
	}
}

// Whatever a report lacks at its end, or in the middle, makes it incomplete,
// and never makes it disappear or more than one.
func TestCutReports(t *testing.T) {
	for _, file := range []string{"kasan", "null-deref", "null-deref-fatal", "warning-panic", "lockdep-circular", "sleeping-in-atomic", "refcount"} {
		log := readConsole(t, "testdata/splats/"+file+".log")
		whole := Detect(log)[0]
		head := slices.IndexFunc(log, func(r Record) bool { return r.Text == whole.Line })
		for n := head + 1; n < len(log); n++ {
			splats := Detect(log[:n])
			if len(splats) != 1 {
				t.Fatalf("%s cut to %d records: %+v", file, n, splats)
			}
			if s := splats[0]; s.Kind != whole.Kind || s.First != whole.First || s.Last > n-1 {
				t.Errorf("%s cut to %d records: %+v", file, n, s)
			}
		}
		if s := Detect(log[:head+2])[0]; !s.Incomplete {
			t.Errorf("%s cut after its headline is complete: %+v", file, s)
		}
		if i := slices.IndexFunc(log, func(r Record) bool { return r.Text == " <TASK>" }); i >= 0 {
			if s := Detect(log[:i+2])[0]; !s.Incomplete {
				t.Errorf("%s cut within its call trace is complete: %+v", file, s)
			}
		}
		if whole.Incomplete {
			t.Errorf("%s is incomplete as a whole: %+v", file, whole)
		}
		// A lost record in the middle: as a notice, and as a gap in the numbers.
		lossy := slices.Insert(slices.Clone(log), head+3, Record{Text: "** 12 printk messages dropped **"})
		if s := Detect(lossy)[0]; !s.Incomplete || s.Kind != whole.Kind {
			t.Errorf("%s with dropped messages: %+v", file, s)
		}
		numbered := slices.Clone(log)
		for i := range numbered {
			numbered[i].Seq = uint64(i + 1)
		}
		if s := Detect(numbered)[0]; s.Incomplete {
			t.Errorf("%s with all its numbers: %+v", file, s)
		}
		if s := Detect(slices.Delete(slices.Clone(numbered), head+2, head+3))[0]; !s.Incomplete {
			t.Errorf("%s with a gap in its numbers: %+v", file, s)
		}
	}
}

func TestAddTellsAtOnce(t *testing.T) {
	d := NewDetector()
	type news struct {
		text  string
		fatal bool
	}
	var got []news
	for _, r := range readConsole(t, "testdata/splats/page-fault.log") {
		if s, ok := d.Add(r); ok {
			got = append(got, news{r.Text, s.Fatal})
		}
	}
	want := []news{
		{"BUG: unable to handle page fault for address: ffffffffffffff8e", false},
		{"Kernel panic - not syncing: Fatal exception", true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(news{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDetectorRules(t *testing.T) {
	at := func(sec int, caller, text string) Record {
		return Record{Time: time.Duration(sec) * time.Second, Caller: caller, Text: text}
	}
	user := func(text string) Record { return Record{Facility: 1, Text: text} }
	const nul = "BUG: kernel NULL pointer dereference, address: 0000000000000000"
	const warn = "WARNING: CPU: 1 PID: 2 at mm/slub.c:1 kfree+0x1/0x2"
	const end = "---[ end trace 0000000000000000 ]---"
	const dead = "Kernel panic - not syncing: Fatal exception"
	rule := strings.Repeat("=", 66)
	flood := func(first string, n int, last ...string) []Record {
		log := []Record{at(1, "T1", first)}
		for range n {
			log = append(log, at(1, "T1", "x"))
		}
		for _, l := range last {
			log = append(log, at(1, "T1", l))
		}
		return log
	}
	oops := func(last int, more Splat) Splat {
		more.Kind, more.Title, more.Line, more.Last, more.Caller = "null-deref", "BUG: kernel NULL pointer dereference", nul, last, "T1"
		return more
	}
	warned := func(last int, more Splat) Splat {
		more.Kind, more.Title, more.Line, more.Last, more.Caller = "warning", "WARNING at mm/slub.c in kfree", warn, last, "T1"
		return more
	}
	for name, c := range map[string]struct {
		log  []Record
		want []Splat
	}{
		"written by user space":  {[]Record{user(nul), user("Kernel panic - not syncing: no")}, nil},
		"a fragment, not a line": {[]Record{{Text: "driver: "}, {Text: "BUG: no", Cont: true}}, nil},
		"newlines inside of a record": {
			[]Record{at(1, "T1", `\x0aBUG: Bad rss-counter state mm:0 type:MM_FILEPAGES val:1`)},
			[]Splat{{Kind: "bad-mm", Title: "BUG: Bad mm counters: MM_FILEPAGES", Line: "BUG: Bad rss-counter state mm:0 type:MM_FILEPAGES val:1", Caller: "T1"}},
		},
		"an unrelated panic is one of its own": {
			[]Record{at(1, "T1", nul), at(2, "T1", "Kernel panic - not syncing: sysrq triggered crash")},
			[]Splat{
				{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference", Line: nul, Caller: "T1", Incomplete: true},
				{Kind: "panic", Title: "Kernel panic: sysrq triggered crash", Line: "Kernel panic - not syncing: sysrq triggered crash", First: 1, Last: 1, Caller: "T1", Fatal: true},
			},
		},
		"a panic long after is one of its own": {
			[]Record{at(1, "T1", nul), at(30, "T1", "Kernel panic - not syncing: Fatal exception")},
			[]Splat{
				{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference", Line: nul, Caller: "T1", Incomplete: true},
				{Kind: "panic", Title: "Kernel panic: Fatal exception", Line: "Kernel panic - not syncing: Fatal exception", First: 1, Last: 1, Caller: "T1", Fatal: true},
			},
		},
		"a panic of another caller is one of its own": {
			[]Record{at(1, "T1", nul), at(1, "C1", "Kernel panic - not syncing: Fatal exception")},
			[]Splat{
				{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference", Line: nul, Caller: "T1", Incomplete: true},
				{Kind: "panic", Title: "Kernel panic: Fatal exception", Line: "Kernel panic - not syncing: Fatal exception", First: 1, Last: 1, Caller: "C1", Fatal: true},
			},
		},
		"what comes long after does not belong to it": {
			[]Record{at(1, "T1", nul), at(1, "T1", "PGD 0 P4D 0"), at(30, "T1", "something"), at(30, "T1", "else")},
			[]Splat{{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference", Line: nul, Last: 1, Caller: "T1", Incomplete: true}},
		},
		"a report whose end is missing ends before the next": {
			[]Record{at(1, "T1", nul), at(1, "T1", "PGD 0 P4D 0"), at(2, "T1", cutHere), at(2, "T1", "kernel BUG at mm/slub.c:1!"), at(2, "T1", "---[ end trace 0000000000000000 ]---")},
			[]Splat{
				{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference", Line: nul, Last: 1, Caller: "T1", Incomplete: true},
				{Kind: "kernel-bug", Title: "kernel BUG at mm/slub.c", Line: "kernel BUG at mm/slub.c:1!", First: 2, Last: 4, Caller: "T1"},
			},
		},
		"one log that begins late, then a boot": {
			[]Record{at(9, "T1", "hello"), at(0, "T0", "Linux version 6.12.1 (x@y)")},
			[]Splat{{Kind: "reboot", Title: "unexpected reboot", Line: "Linux version 6.12.1 (x@y)", First: 1, Last: 1, Caller: "T0", Fatal: true}},
		},
		"two boots of kernels that print no time": {
			[]Record{{Text: "Linux version 6.12.1 (x@y)"}, {Text: "Linux version 6.12.1 (x@y)"}},
			[]Splat{{Kind: "reboot", Title: "unexpected reboot", Line: "Linux version 6.12.1 (x@y)", First: 1, Last: 1, Fatal: true}},
		},
		"the next boot adds nothing to a report before it": {
			[]Record{at(1, "T1", nul), at(0, "T0", "Linux version 6.12.1 (x@y)"), at(1, "T1", "x")},
			[]Splat{
				oops(0, Splat{Incomplete: true}),
				{Kind: "reboot", Title: "unexpected reboot", Line: "Linux version 6.12.1 (x@y)", First: 1, Last: 1, Caller: "T0", Fatal: true},
			},
		},
		"a panic in the next boot has nothing to do with an oops before it": {
			[]Record{at(1, "T1", nul), at(1, "T1", end), at(0, "T0", "Linux version 6.12.1 (x@y)"), at(1, "T1", dead)},
			[]Splat{
				oops(1, Splat{}),
				{Kind: "reboot", Title: "unexpected reboot", Line: "Linux version 6.12.1 (x@y)", First: 2, Last: 2, Caller: "T0", Fatal: true},
				{Kind: "panic", Title: "Kernel panic: Fatal exception", Line: dead, First: 3, Last: 3, Caller: "T1", Fatal: true},
			},
		},
		"the rule after one report does not begin the next": {
			[]Record{at(1, "T1", rule), at(1, "T1", "BUG: KASAN: a in b"), at(1, "T1", rule), at(1, "T1", nul)},
			[]Splat{
				{Kind: "kasan", Title: "BUG: KASAN: a in b", Line: "BUG: KASAN: a in b", Last: 2, Caller: "T1"},
				{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference", Line: nul, First: 3, Last: 3, Caller: "T1", Incomplete: true},
			},
		},
		"a short rule ends nothing": {
			[]Record{at(1, "T1", "BUG: KASAN: a in b"), at(1, "T1", "===="), at(1, "T1", "x"), at(1, "T1", rule), at(1, "T1", "y")},
			[]Splat{{Kind: "kasan", Title: "BUG: KASAN: a in b", Line: "BUG: KASAN: a in b", Last: 3, Caller: "T1"}},
		},
		"no better name once the trace has begun": {
			[]Record{at(1, "T1", warn), at(1, "T1", callTrace), at(1, "T1", "refcount_t: saturated; leaking memory."), at(1, "T1", end)},
			[]Splat{
				warned(1, Splat{Incomplete: true}),
				{Kind: "refcount", Title: "refcount_t: saturated; leaking memory", Line: "refcount_t: saturated; leaking memory.", First: 2, Last: 3, Caller: "T1"},
			},
		},
		"stumbling after a panic is no news": {
			[]Record{at(1, "T1", nul), at(1, "T1", end), at(1, "T1", dead), at(1, "T1", warn), at(1, "T1", "x"), at(1, "T1", dead)},
			[]Splat{oops(5, Splat{Fatal: true})},
		},
		"stumbling in a double fault is no news": {
			[]Record{at(1, "C1", "PANIC: double fault, error_code: 0x0"), at(1, "C1", warn), at(1, "C1", end)},
			[]Splat{{Kind: "double-fault", Title: "PANIC: double fault", Line: "PANIC: double fault, error_code: 0x0", Last: 2, Caller: "C1", Fatal: true}},
		},
		"the last words of a panic": {
			[]Record{at(1, "T1", nul), at(1, "T1", end), at(1, "T1", dead), at(1, "T1", "---[ end Kernel panic - not syncing: Fatal exception ]---"), at(1, "T1", "x")},
			[]Splat{oops(3, Splat{Fatal: true})},
		},
		"a panic that reboots": {
			[]Record{at(1, "T1", nul), at(1, "T1", end), at(1, "T1", dead), at(1, "T1", "Rebooting in 1 seconds.."), at(1, "T1", "x")},
			[]Splat{oops(3, Splat{Fatal: true})},
		},
		"the end of a report outweighs the end of its trace": {
			[]Record{at(1, "T1", warn), at(1, "T1", callTrace), at(1, "T1", " <TASK>"), at(1, "T1", " kfree+0x1/0x2"), at(1, "T1", end)},
			[]Splat{warned(4, Splat{})},
		},
		"nothing follows a warning": {
			[]Record{at(1, "T1", warn), at(1, "T1", end), at(1, "T1", " indented")},
			[]Splat{warned(1, Splat{})},
		},
		"registers follow an oops": {
			[]Record{at(1, "T1", nul), at(1, "T1", end), at(1, "T1", "RIP: 0010:kfree+0x1/0x2"), at(1, "T1", "x"), at(1, "T1", "RSP: 0018:0")},
			[]Splat{{Kind: "null-deref", Title: "BUG: kernel NULL pointer dereference in kfree", Line: nul, Last: 2, Caller: "T1"}},
		},
		"a headline that stands alone": {
			flood("BUG: alone", maxBare+5, callTrace, " kfree+0x1/0x2"),
			[]Splat{{Kind: "bug", Title: "BUG: alone", Line: "BUG: alone", Caller: "T1"}},
		},
		"a report without an end is bounded": {
			flood(nul, maxReport+5),
			[]Splat{oops(maxReport, Splat{Incomplete: true})},
		},
		"a lead too far away":  {flood(cutHere, maxLead+1, warn, end), []Splat{warned(maxLead+3, Splat{First: maxLead + 2})}},
		"a lead near enough":   {flood(cutHere, maxLead, warn, end), []Splat{warned(maxLead+2, Splat{})}},
		"a lead from long ago": {[]Record{at(1, "T1", cutHere), at(30, "T1", warn), at(30, "T1", end)}, []Splat{warned(2, Splat{First: 1})}},
		"a function within a text": {
			[]Record{at(1, "T1", "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: kfree+0x1f/0x2e")},
			[]Splat{{
				Kind: "panic", Title: "Kernel panic: stack-protector: Kernel stack is corrupted in: kfree", Caller: "T1", Fatal: true,
				Line: "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: kfree+0x1f/0x2e",
			}},
		},
		"firmware before the banner": {
			[]Record{{Text: "SeaBIOS (version 1.16.2)"}, {Text: "Linux version 6.12.1 (x@y)"}}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Detect(c.log)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestKindsTableIsChecked(t *testing.T) {
	const good = "{name: a, headlines: ['BUG: a'], title: a, ends: line}"
	if _, err := loadKinds([]byte("kinds:\n- " + good + "\n")); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, data := range map[string]string{
		"empty":                 "kinds: []\n",
		"unknown field":         "kinds:\n- {name: a, headlines: ['BUG: a'], title: a, ends: line, extra: 1}\n",
		"twice":                 "kinds:\n- " + good + "\n- " + good + "\n",
		"no title":              "kinds:\n- {name: a, headlines: ['BUG: a'], ends: line}\n",
		"no headline":           "kinds:\n- {name: a, title: a, ends: line}\n",
		"unknown end":           "kinds:\n- {name: a, headlines: ['BUG: a'], title: a, ends: soon}\n",
		"unknown place":         "kinds:\n- {name: a, headlines: ['BUG: a'], title: a, ends: line, where: there}\n",
		"unknown kind":          "kinds:\n- {name: a, headlines: ['BUG: a'], title: a, ends: line, continues: [b]}\n",
		"not literal":           "kinds:\n- {name: a, headlines: ['(BUG|INFO): a'], title: a, ends: line}\n",
		"no regular expression": "kinds:\n- {name: a, headlines: ['BUG: ('], title: a, ends: line}\n",
	} {
		if _, err := loadKinds([]byte(data)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func BenchmarkParseConsole(b *testing.B) {
	data, err := os.ReadFile("testdata/splats/lockdep-circular.log")
	if err != nil {
		b.Fatal(err)
	}
	data = bytes.Repeat(data, 1_000_000/bytes.Count(data, []byte{'\n'})+1)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := ParseConsole(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDetect(b *testing.B) {
	// A million lines: a healthy log with a splat in every ten thousand.
	var log []Record
	calm := readConsole(b, "testdata/lookalikes/boot.log")
	splat := readConsole(b, "testdata/splats/kasan.log")
	for len(log) < 1_000_000 {
		if len(log)/10_000 != (len(log)+len(calm))/10_000 {
			log = append(log, splat...)
		}
		log = append(log, calm...)
	}
	log = log[:1_000_000]
	b.Run("calm", func(b *testing.B) {
		for b.Loop() {
			Detect(log)
		}
	})
	// The worst: a report that never ends, so that no line can leave early.
	open := append([]Record{{Caller: "T99999", Text: "BUG: kernel NULL pointer dereference, address: 0"}}, log...)
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			Detect(open)
		}
	})
	b.Run("hostile", func(b *testing.B) {
		hostile := make([]Record, 100_000)
		for i := range hostile {
			hostile[i] = Record{Seq: uint64(2 * i), Caller: fmt.Sprintf("T%d", i), Text: "BUG: KASAN: a in b in c in d in e"}
		}
		for b.Loop() {
			Detect(hostile)
		}
	})
}
