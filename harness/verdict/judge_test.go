// SPDX-License-Identifier: MIT

package verdict

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/harness/klog"
)

// story makes the events of one cell.
type story struct {
	t      *testing.T
	events []Event
	seq    uint64
	at     time.Time
}

func begin(t *testing.T) *story {
	return &story{t: t, at: time.Date(2026, 11, 5, 10, 0, 0, 0, time.UTC)}
}

func (s *story) add(e Event) *story {
	s.at = s.at.Add(time.Millisecond)
	e.At = s.at
	s.events = append(s.events, e)
	return s
}

func (s *story) launch() *story { s.seq = 0; return s.add(Event{Kind: Launch}) }

// boot is a guest that comes up and starts the program of suite s.
func (s *story) boot() *story {
	return s.launch().kernel("Linux version 6.12.117").add(Event{Kind: Hello, Text: "6.12.117"}).run("s")
}

func (s *story) record(facility uint8, text string) *story {
	r := klog.Record{Seq: s.seq, Level: 6, Facility: facility, Text: text}
	s.seq++
	return s.add(Event{Kind: Kmsg, Record: &r})
}

func (s *story) kernel(texts ...string) *story {
	for _, text := range texts {
		s.record(0, text)
	}
	return s
}

func (s *story) run(suite string) *story {
	return s.add(Event{Kind: Begin, Suite: suite}).record(1, "patchbay: run "+suite)
}

// start and end are told by the test program and by the marker in the log.
func (s *story) start(test string) *story { return s.says(test).marks("start", test) }

func (s *story) end(test string, o Outcome) *story {
	return s.marks("end", test).add(Event{Kind: TestEnd, Suite: "s", Test: test, Outcome: o})
}

func (s *story) says(test string) *story {
	return s.add(Event{Kind: TestStart, Suite: "s", Test: test})
}

func (s *story) marks(verb, test string) *story { return s.record(1, "patchbay: "+verb+" s/"+test) }

func (s *story) test(test string, o Outcome) *story { return s.start(test).end(test, o) }

func (s *story) print(test, text string) *story {
	return s.add(Event{Kind: Output, Suite: "s", Test: test, Text: text})
}

// exit is the end of the program; text is empty if it ended well.
func (s *story) exit(text string) *story {
	return s.record(1, "patchbay: exit s").add(Event{Kind: Exited, Suite: "s", Text: text, Failed: text != ""})
}

func (s *story) kind(k Kind, text string) *story { return s.add(Event{Kind: k, Text: text}) }

func (s *story) done() *story { return s.kind(Done, "") }

// close is the good end of a guest whose program ended well.
func (s *story) close() *story { return s.exit("").done() }

// splat is a log that klog knows. Its first records come through the agent, the
// last console of them only by the console.
func (s *story) splat(name string, console int) *story {
	s.t.Helper()
	f, err := os.Open(filepath.Join("..", "klog", "testdata", "splats", name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	log, err := klog.ParseConsole(f)
	if err != nil {
		s.t.Fatal(err)
	}
	log = log[1:] // the licence
	for i, r := range log {
		if i >= len(log)-console {
			r.Seq, r.Level = 0, klog.LevelUnknown
			s.add(Event{Kind: Console, Record: &r})
			continue
		}
		r.Seq, r.Level = s.seq, 4
		s.seq++
		s.add(Event{Kind: Kmsg, Record: &r})
	}
	return s
}

// all of the console's lines.
const onlyConsole = 1 << 20

func judged(s *story, allow *klog.AllowList, planned ...string) *Cell {
	c := &Cell{}
	Judge(c, []Suite{{Name: "s", Tests: planned}}, s.events, allow)
	return c
}

func TestJudge(t *testing.T) {
	allow := loadAllow(t, "2026-11-05")
	expired := loadAllow(t, "2026-11-04")
	const (
		rcu  = "WARNING: suspicious RCU usage in __sock_map_lookup_elem"
		null = "BUG: kernel NULL pointer dereference in sk_psock_verdict_data_ready"
	)
	for name, tc := range map[string]struct {
		story *story
		allow *klog.AllowList
		plan  []string
		// cell and its reason; tests as "name outcome" in their order, with
		// parts of their reasons.
		cell    Outcome
		reason  string
		tests   []string
		reasons map[string]string
		// splats outside any test, and words in the trouble.
		splats  []string
		trouble []string
	}{
		"all is well": {
			story: begin(t).boot().test("A", Pass).test("B", Pass).close(),
			plan:  []string{"A", "B"},
			cell:  Pass, tests: []string{"A pass", "B pass"},
		},
		"a skip keeps its reason and the cell good": {
			story: begin(t).boot().start("A").print("A", "    a_test.go:9: the kernel lacks it\n").end("A", Skip).close(),
			plan:  []string{"A"},
			cell:  Pass, tests: []string{"A skip"},
			reasons: map[string]string{"A": "a_test.go:9: the kernel lacks it"},
		},
		"no events at all": {
			story: begin(t), plan: []string{"A"},
			cell: NotRun, reason: "it was planned and never started", tests: []string{"A notrun"},
		},
		"nothing planned and nothing run is not good": {
			story: begin(t).boot().close(),
			cell:  NotRun, reason: "no test ran",
		},
		"a failed assertion": {
			story: begin(t).boot().start("A").print("A", "    a_test.go:7: sent 5 bytes, got 4\n").print("A", "the end\n").end("A", Fail).exit("exit status 1").done(),
			plan:  []string{"A"},
			cell:  Fail, reason: "s/A: a_test.go:7: sent 5 bytes, got 4", tests: []string{"A fail"},
		},
		"a failure without a word": {
			story: begin(t).boot().test("A", Fail).exit("exit status 1").done(), plan: []string{"A"},
			cell: Fail, reason: "it gave no reason", tests: []string{"A fail"},
		},
		"a planned test that never started": {
			story: begin(t).boot().test("A", Pass).close(), plan: []string{"A", "B"},
			cell: NotRun, reason: "s/B: it was planned", tests: []string{"A pass", "B notrun"},
		},
		"a program that could not be started": {
			story: begin(t).boot().exit("it could not be started: exec format error").done(), plan: []string{"A"},
			cell: NotRun, reason: "exec format error", tests: []string{"A notrun"},
		},
		"a program that died in a test": {
			story: begin(t).boot().test("A", Pass).start("B").exit("killed by SIGSEGV").done(), plan: []string{"A", "B", "C"},
			cell: Fail, reason: "s/B: the test program ended in the middle of it: killed by SIGSEGV",
			tests:   []string{"A pass", "B fail", "C notrun"},
			reasons: map[string]string{"C": "its program did not get to it: killed by SIGSEGV"},
		},
		"a program that ended with 0 in a test": {
			story: begin(t).boot().start("A").close(), plan: []string{"A"},
			cell: Fail, reason: "in the middle of it: exit status 0", tests: []string{"A fail"},
		},
		"a program that failed though its tests passed": {
			story: begin(t).boot().test("A", Pass).print("", "DATA RACE\n").exit("exit status 66").done(), plan: []string{"A"},
			cell: Fail, reason: "its tests passed, yet the program failed: exit status 66",
			tests: []string{"A pass"}, trouble: []string{"DATA RACE"},
		},
		"a splat in a test": {
			story: begin(t).boot().start("A").splat("suspicious-rcu", 0).end("A", Pass).test("B", Pass).close(), plan: []string{"A", "B"},
			cell: Splat, reason: "s/A: WARNING: suspicious RCU usage", tests: []string{"A splat", "B pass"},
		},
		"a splat makes a failure worse and a skip too": {
			story: begin(t).boot().start("A").splat("suspicious-rcu", 0).end("A", Fail).start("B").splat("refcount", 0).end("B", Skip).exit("exit status 1").done(),
			plan:  []string{"A", "B"},
			cell:  Splat, tests: []string{"A splat", "B splat"},
		},
		"a splat outside any test": {
			story: begin(t).boot().test("A", Pass).splat("suspicious-rcu", 0).test("B", Pass).close(), plan: []string{"A", "B"},
			cell: Splat, reason: "outside any test: WARNING: suspicious RCU usage",
			tests: []string{"A pass", "B pass"}, splats: []string{rcu},
		},
		"a splat before the hello": {
			story: begin(t).launch().splat("suspicious-rcu", 0).add(Event{Kind: Hello}).run("s").test("A", Pass).close(), plan: []string{"A"},
			cell: Splat, tests: []string{"A pass"}, splats: []string{rcu},
		},
		"a splat after the program's end": {
			story: begin(t).boot().test("A", Pass).exit("").splat("suspicious-rcu", 0).done(), plan: []string{"A"},
			cell: Splat, tests: []string{"A pass"}, splats: []string{rcu},
		},
		"a splat of a sub-test is not its parent's": {
			story: begin(t).boot().start("P").start("P/a").splat("suspicious-rcu", 0).end("P/a", Pass).test("P/b", Pass).end("P", Pass).close(),
			plan:  []string{"P/a", "P/b"},
			cell:  Splat, tests: []string{"P/a splat", "P/b pass"},
		},
		"a splat in a parent between its sub-tests": {
			story: begin(t).boot().start("P").test("P/a", Pass).splat("suspicious-rcu", 0).end("P", Pass).close(), plan: []string{"P/a"},
			cell: Splat, tests: []string{"P/a pass", "P splat"},
		},
		"user space cannot forge a splat": {
			story: begin(t).boot().start("A").record(1, "BUG: kernel NULL pointer dereference, address: 0").end("A", Pass).close(), plan: []string{"A"},
			cell: Pass, tests: []string{"A pass"},
		},
		"the kernel cannot forge a marker": {
			story: begin(t).boot().start("A").kernel("patchbay: end s/A").splat("suspicious-rcu", 0).end("A", Pass).close(), plan: []string{"A"},
			cell: Splat, tests: []string{"A splat"},
		},
		"a known splat": {
			story: begin(t).boot().start("A").splat("suspicious-rcu", 0).end("A", Pass).splat("suspicious-rcu", 0).close(), plan: []string{"A"},
			allow: allow,
			cell:  Pass, tests: []string{"A pass"}, splats: []string{rcu},
		},
		"a known splat whose entry expired": {
			story: begin(t).boot().start("A").splat("suspicious-rcu", 0).end("A", Pass).close(), plan: []string{"A"},
			allow: expired,
			cell:  Splat, tests: []string{"A splat"},
		},
		"a known splat covers no other": {
			story: begin(t).boot().start("A").splat("suspicious-rcu", 0).splat("refcount", 0).end("A", Pass).close(), plan: []string{"A"},
			allow: allow,
			cell:  Splat, tests: []string{"A splat"}, reasons: map[string]string{"A": "refcount_t"},
		},
		"the kernel died in a test": {
			story: begin(t).boot().test("A", Pass).start("B").splat("null-deref-fatal", 0).kind(Gone, "QEMU ended"), plan: []string{"A", "B", "C"},
			cell: Crash, reason: null, tests: []string{"A pass", "B crash", "C notrun"},
			reasons: map[string]string{"B": null},
		},
		"only the console saw the kernel die": {
			story: begin(t).boot().start("A").kind(Gone, "QEMU ended").splat("null-deref-fatal", onlyConsole), plan: []string{"A"},
			cell: Crash, reason: null, tests: []string{"A crash"},
		},
		"half of the death came by the console": {
			story: begin(t).boot().start("A").splat("null-deref-fatal", 9).kind(Gone, "QEMU ended"), plan: []string{"A"},
			cell: Crash, reason: null, tests: []string{"A crash"},
		},
		"only the log knows which test was on": {
			story: begin(t).boot().marks("start", "A").kind(Gone, "QEMU ended").splat("null-deref-fatal", onlyConsole), plan: []string{"A"},
			cell: Crash, tests: []string{"A crash"},
		},
		"only the program knows which test was on": {
			story: begin(t).boot().says("A").kind(Gone, "QEMU ended").splat("null-deref-fatal", onlyConsole), plan: []string{"A"},
			cell: Crash, tests: []string{"A crash"}, splats: []string{null},
		},
		"the kernel died after a test whose result did not get out": {
			story: begin(t).boot().start("A").marks("end", "A").start("B").splat("null-deref-fatal", 0).kind(Gone, "QEMU ended"),
			plan:  []string{"A", "B"},
			cell:  Crash, tests: []string{"A lost", "B crash"},
			reasons: map[string]string{"A": "its result was lost when the kernel died"},
		},
		"the kernel died between two tests": {
			story: begin(t).boot().test("A", Pass).splat("null-deref-fatal", 0).kind(Gone, "QEMU ended"), plan: []string{"A", "B"},
			cell: Crash, reason: null, tests: []string{"A pass", "B notrun"}, splats: []string{null},
		},
		"an allow list does not cover death": {
			story: begin(t).boot().start("A").splat("null-deref-fatal", 0).kind(Gone, "QEMU ended"), plan: []string{"A"},
			allow: allow,
			cell:  Crash, tests: []string{"A crash"},
		},
		"the kernel died though the stream says done": {
			story: begin(t).boot().start("A").splat("null-deref-fatal", 0).end("A", Pass).close(), plan: []string{"A"},
			cell: Crash, tests: []string{"A crash"},
		},
		"a panic at boot": {
			story: begin(t).launch().kind(Gone, "QEMU ended before the agent could connect").splat("panic", onlyConsole), plan: []string{"A"},
			cell: Boot, reason: "Kernel panic", tests: []string{"A notrun"},
			splats: []string{"Kernel panic: VFS: Unable to mount root fs on unknown-block(N,N)"},
		},
		"no answer at boot": {
			story: begin(t).launch().kind(Deadline, "it did not come up within 1m0s"), plan: []string{"A"},
			cell: Boot, reason: "no answer from the guest: it did not come up within 1m0s", tests: []string{"A notrun"},
		},
		"interrupted at boot": {
			story: begin(t).launch().kind(Cancelled, "the run was interrupted"), plan: []string{"A"},
			cell: NotRun, reason: "the run was interrupted", tests: []string{"A notrun"},
		},
		"interrupted in a test": {
			story: begin(t).boot().test("A", Pass).start("B").kind(Cancelled, "the run was interrupted"), plan: []string{"A", "B"},
			cell: NotRun, reason: "the run was interrupted", tests: []string{"A pass", "B notrun"},
		},
		"the guest went away in a test": {
			story: begin(t).boot().start("A").kind(Gone, "QEMU ended"), plan: []string{"A"},
			cell: Lost, reason: "QEMU ended", tests: []string{"A lost"},
			reasons: map[string]string{"A": "the guest went away: QEMU ended"},
		},
		"the guest went away after the last test": {
			story: begin(t).boot().test("A", Pass).exit("").kind(Gone, "QEMU ended"), plan: []string{"A"},
			cell: Lost, reason: "the stream from the guest is incomplete: QEMU ended", tests: []string{"A pass"},
		},
		"the events stop without a reason": {
			story: begin(t).boot().test("A", Pass).exit(""), plan: []string{"A"},
			cell: Lost, reason: "incomplete", tests: []string{"A pass"},
		},
		"the first reason is the cause": {
			story: begin(t).boot().start("A").kind(Broken, "protocol: frame too long").kind(Gone, "QEMU ended"), plan: []string{"A"},
			cell: Lost, reason: "frame too long", tests: []string{"A lost"},
		},
		"counts that do not agree": {
			story: begin(t).boot().test("A", Pass).exit("").kind(Broken, "the agent counted 7, 6 arrived"), plan: []string{"A"},
			cell: Lost, reason: "counted 7", tests: []string{"A pass"},
		},
		"a gap in the kernel log": {
			story: func() *story {
				s := begin(t).boot().start("A").kernel("a")
				s.seq += 3
				return s.kernel("b").end("A", Pass).close()
			}(),
			plan: []string{"A"},
			cell: Lost, reason: "the kernel log has gaps", tests: []string{"A pass"}, trouble: []string{"3 kernel log records"},
		},
		"a gap at the head of the kernel log": {
			story: func() *story {
				s := begin(t).launch()
				s.seq = 2
				return s.kernel("a").add(Event{Kind: Hello}).run("s").test("A", Pass).close()
			}(),
			plan: []string{"A"},
			cell: Lost, reason: "the kernel log has gaps", tests: []string{"A pass"}, trouble: []string{"2 kernel log records"},
		},
		"a test over its deadline, the guest goes on": {
			story: begin(t).boot().start("A").kind(Deadline, "no end within the test deadline of 15s").exit("killed by SIGKILL").done(), plan: []string{"A", "B"},
			cell: Timeout, reason: "s/A: no end within", tests: []string{"A timeout", "B notrun"},
		},
		"a test over its deadline takes the guest with it": {
			story: begin(t).boot().start("A").kind(Deadline, "no end within the test deadline of 15s").kind(Trouble, "the guest was ended"), plan: []string{"A"},
			cell: Timeout, tests: []string{"A timeout"}, trouble: []string{"the guest was ended"},
		},
		"the kernel died while the harness waited": {
			story: begin(t).boot().start("A").kind(Deadline, "no end within the test deadline of 15s").splat("panic", onlyConsole), plan: []string{"A"},
			cell: Crash, tests: []string{"A crash"},
		},
		"a program that hangs after its tests": {
			story: begin(t).boot().test("A", Pass).kind(Deadline, "no end within the suite deadline of 5m0s").exit("killed by SIGKILL").done(), plan: []string{"A"},
			cell: Timeout, reason: "no end within the suite deadline", tests: []string{"A pass"},
		},
		"the agent does not close the stream": {
			story: begin(t).boot().test("A", Pass).exit("").kind(Deadline, "the agent did not close the stream within 1m0s"), plan: []string{"A"},
			cell: Timeout, reason: "did not close the stream", tests: []string{"A pass"},
		},
		"what a crash left runs in a second guest": {
			story: begin(t).boot().start("P").start("P/a").splat("null-deref-fatal", 0).kind(Gone, "QEMU ended").
				boot().start("P").test("P/b", Pass).end("P", Pass).close(),
			plan: []string{"P/a", "P/b"},
			cell: Crash, reason: null, tests: []string{"P/a crash", "P/b pass"},
		},
		"a parent that hung is not good because it ended in the second guest": {
			story: begin(t).boot().start("P").kind(Deadline, "no end within the test deadline of 15s").exit("killed by SIGKILL").done().
				boot().start("P").test("P/b", Pass).end("P", Pass).close(),
			plan: []string{"P/b"},
			cell: Timeout, tests: []string{"P/b pass", "P timeout"},
		},
		"a parent may end once in each guest": {
			story: begin(t).boot().start("P").test("P/a", Fail).end("P", Fail).exit("exit status 2").done().
				boot().start("P").test("P/b", Pass).end("P", Pass).close(),
			plan: []string{"P/a", "P/b"},
			cell: Fail, tests: []string{"P/a fail", "P/b pass"},
		},
		"a second guest that does not come up": {
			story: begin(t).boot().start("A").kind(Gone, "QEMU ended").launch().kind(Deadline, "no boot"), plan: []string{"A", "B"},
			cell: Boot, reason: "no boot", tests: []string{"A lost", "B notrun"},
		},
		"a parent that only repeats its sub-tests is left out": {
			story: begin(t).boot().start("P").test("P/a", Fail).test("P/b", Pass).end("P", Fail).exit("exit status 1").done(), plan: []string{"P/a", "P/b"},
			cell: Fail, tests: []string{"P/a fail", "P/b pass"},
		},
		"a parent that fails by itself is named": {
			story: begin(t).boot().start("P").test("P/a", Pass).print("P", "    p_test.go:3: a leak\n").end("P", Fail).exit("exit status 1").done(), plan: []string{"P/a"},
			cell: Fail, reason: "s/P: p_test.go:3: a leak", tests: []string{"P/a pass", "P fail"},
		},
		"a parent that was planned is named": {
			story: begin(t).boot().start("P").test("P/a", Pass).end("P", Pass).close(), plan: []string{"P", "P/a"},
			cell: Pass, tests: []string{"P pass", "P/a pass"},
		},
		"a test that nobody planned counts": {
			story: begin(t).boot().test("A", Pass).test("X", Fail).exit("exit status 1").done(), plan: []string{"A"},
			cell: Fail, tests: []string{"A pass", "X fail"},
		},
		"a test that ends twice": {
			story: begin(t).boot().start("A").end("A", Fail).end("A", Pass).exit("exit status 1").done(), plan: []string{"A"},
			cell: Fail, tests: []string{"A fail"}, trouble: []string{"s/A ended twice"},
		},
		"a test that ends without a start": {
			story: begin(t).boot().add(Event{Kind: TestEnd, Suite: "s", Test: "A", Outcome: Pass}).close(), plan: []string{"A"},
			cell: Pass, tests: []string{"A pass"}, trouble: []string{"s/A ended without a start"},
		},
		"results without a guest": {
			story: begin(t).test("A", Pass), plan: []string{"A"},
			cell: Lost, tests: []string{"A lost"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := judged(tc.story, tc.allow, tc.plan...)
			if c.Outcome != tc.cell || !strings.Contains(c.Reason, tc.reason) {
				t.Errorf("the cell is %v (%q), want %v (%q)", c.Outcome, c.Reason, tc.cell, tc.reason)
			}
			if (c.Outcome == Pass) != (c.Reason == "") {
				t.Errorf("%v with the reason %q", c.Outcome, c.Reason)
			}
			var tests []string
			for _, test := range c.Tests {
				tests = append(tests, test.Name+" "+test.Outcome.String())
				if !strings.Contains(test.Reason, tc.reasons[test.Name]) || (test.Outcome != Pass) != (test.Reason != "") {
					t.Errorf("%s is %v with the reason %q, want %q", test.Name, test.Outcome, test.Reason, tc.reasons[test.Name])
				}
				for _, sp := range test.Splats {
					if line := test.Log[sp.First : sp.Last+1]; !slices.ContainsFunc(line, func(r klog.Record) bool { return strings.Contains(r.Text, sp.Line) }) {
						t.Errorf("%s: the records %d to %d do not hold %q", test.Name, sp.First, sp.Last, sp.Line)
					}
				}
			}
			if !slices.Equal(tests, tc.tests) {
				t.Errorf("tests %q, want %q", tests, tc.tests)
			}
			var splats []string
			for _, sp := range c.Splats {
				splats = append(splats, sp.Title)
			}
			if !slices.Equal(splats, tc.splats) {
				t.Errorf("splats outside any test %q, want %q", splats, tc.splats)
			}
			trouble := strings.Join(c.Trouble, "\n")
			for _, want := range tc.trouble {
				if !strings.Contains(trouble, want) {
					t.Errorf("trouble %q lacks %q", trouble, want)
				}
			}
			if len(tc.trouble) == 0 && trouble != "" {
				t.Errorf("unexpected trouble %q", trouble)
			}
			checkKernelLog(t, tc.story.events, c)
		})
	}
}

// checkKernelLog demands that the kernel log has every record once and in
// order, and that a test's records are those that say they are its.
func checkKernelLog(t *testing.T, events []Event, c *Cell) {
	t.Helper()
	var want, got []klog.Record
	boot := 0
	for _, e := range events {
		if e.Kind == Launch {
			boot++
		}
		if e.Record != nil && boot > 0 {
			want = append(want, *e.Record)
		}
	}
	var outside []klog.Record
	owned := map[string][]klog.Record{}
	splats := 0
	for _, l := range c.KernelLog {
		got = append(got, l.Record)
		splats += len(l.Splats)
		if l.Test == "" {
			outside = append(outside, l.Record)
		} else {
			owned[l.Suite+"/"+l.Test] = append(owned[l.Suite+"/"+l.Test], l.Record)
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("%d records came, the kernel log has %d, or other ones", len(want), len(got))
	}
	if !reflect.DeepEqual(outside, c.Log) {
		t.Errorf("%d records are outside any test, the cell has %d", len(outside), len(c.Log))
	}
	splats -= len(c.Splats)
	for _, test := range c.Tests {
		if !reflect.DeepEqual(owned[test.Suite+"/"+test.Name], test.Log) {
			t.Errorf("%s has other records than the kernel log says", test.Name)
		}
		splats -= len(test.Splats)
	}
	if splats != 0 {
		t.Errorf("the kernel log and the tests differ by %d splats", splats)
	}
}

func loadAllow(t *testing.T, expires string) *klog.AllowList {
	t.Helper()
	path := filepath.Join(t.TempDir(), "allow.yaml")
	text := fmt.Sprintf("allow:\n  - regex: 'suspicious RCU|NULL pointer'\n    reason: known\n    link: https://example.org/1\n    expires: %s\n", expires)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := klog.LoadAllowList(path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestKernelLog looks at owners and guests, and at a report that another CPU
// interrupts.
func TestKernelLog(t *testing.T) {
	c := judged(begin(t).boot().start("P").start("P/a").kernel("in a").end("P/a", Pass).kernel("in P").end("P", Pass).kernel("after").close().
		boot().test("B", Pass).close(), nil, "P/a", "B")
	var got []string
	for _, l := range c.KernelLog {
		got = append(got, fmt.Sprintf("%d %s: %s", l.Boot, l.Test, l.Text))
	}
	want := []string{
		"1 : Linux version 6.12.117", "1 : patchbay: run s",
		"1 P: patchbay: start s/P", "1 P/a: patchbay: start s/P/a", "1 P/a: in a", "1 P/a: patchbay: end s/P/a",
		"1 P: in P", "1 P: patchbay: end s/P", "1 : after", "1 : patchbay: exit s",
		"2 : Linux version 6.12.117", "2 : patchbay: run s", "2 B: patchbay: start s/B", "2 B: patchbay: end s/B", "2 : patchbay: exit s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLongOutputIsCut(t *testing.T) {
	line := strings.Repeat("x", 1023) + "\n"
	s := begin(t).boot().start("A")
	for range 300 {
		s.print("A", line)
	}
	out := judged(s.end("A", Pass).close(), nil, "A").Tests[0].Output
	if rest := 300<<10 - outputLimit; len(out) > outputLimit+100 || !strings.Contains(out, fmt.Sprintf("[%d more bytes are in events.jsonl]", rest)) {
		t.Errorf("%d bytes are kept, ending in %q", len(out), out[len(out)-60:])
	}
}

func TestDurations(t *testing.T) {
	s := begin(t).boot().start("A").marks("end", "A").add(Event{Kind: TestEnd, Suite: "s", Test: "A", Outcome: Pass, Elapsed: 40 * time.Millisecond})
	tests := judged(s.test("B", Pass).close(), nil, "A", "B").Tests
	if tests[0].Duration != 40*time.Millisecond {
		t.Errorf("A took %v, the test program says 40ms", tests[0].Duration)
	}
	if tests[1].Duration != 3*time.Millisecond {
		t.Errorf("B took %v, the host's clock says 3ms", tests[1].Duration)
	}
}

// TestNothingLostIsGood takes a good run apart: whatever single event, or end,
// is missing, and in whatever the kernel complains, the verdict must not stay
// good. What may be lost is listed.
func TestNothingLostIsGood(t *testing.T) {
	whole := begin(t).boot().start("P").test("P/a", Pass).test("P/b", Pass).end("P", Pass).start("A").print("A", "x\n").end("A", Skip).close()
	plan := []string{"P/a", "P/b", "A"}
	if c := judged(whole, nil, plan...); c.Outcome != Pass {
		t.Fatalf("the whole is %v: %s", c.Outcome, c.Reason)
	}
	judge := func(events []Event) *Cell { return judged(&story{events: events}, nil, plan...) }
	harmless := map[Kind]string{
		Begin:     "the program's start is only told to people",
		Output:    "what a test printed is not its result",
		TestStart: "the marker in the log and the end say it too",
		Exited:    "done says that all programs ended, and the ends of the tests are there",
	}
	for i, e := range whole.events {
		c := judge(slices.Delete(slices.Clone(whole.events), i, i+1))
		last := i == len(whole.events)-3 // the marker that the program ended
		if c.Outcome == Pass && harmless[e.Kind] == "" && !last && !(e.Kind == TestEnd && e.Test == "P") {
			t.Errorf("without event %d (%s %s) the cell is good", i, e.Kind, e.Test)
		}
		if i > 0 {
			if c := judge(whole.events[:i]); c.Outcome == Pass {
				t.Errorf("with only the first %d events the cell is good", i)
			}
		}
	}
	for i := 1; i < len(whole.events)-1; i++ { // 1 is the log's first record
		s := &story{t: t, seq: 0}
		bad := begin(t).launch()
		bad.events = nil
		bad.splat("suspicious-rcu", 0)
		s.events = slices.Concat(whole.events[:i+1], bad.events, whole.events[i+1:])
		renumber(s.events)
		if c := judge(s.events); c.Outcome != Splat {
			t.Errorf("with a splat after event %d the cell is %v: %s", i, c.Outcome, c.Reason)
		}
	}
}

// renumber gives the records of one guest the numbers that a kernel gives.
func renumber(events []Event) {
	seq := uint64(0)
	for i := range events {
		if r := events[i].Record; r != nil {
			own := *r
			own.Seq = seq
			events[i].Record = &own
			seq++
		}
	}
}

// TestAnythingGoes throws events together at random: Judge must not panic, must
// not invent a good verdict where a guest was not finished, and must give each
// planned test exactly one outcome.
func TestAnythingGoes(t *testing.T) {
	kinds := []Kind{Launch, Hello, Begin, TestStart, TestEnd, Output, Kmsg, Console, Exited, Done, Trouble, Deadline, Cancelled, Broken, Gone}
	names := []string{"", "A", "B", "P", "P/a", "P/b"}
	texts := []string{
		"", "patchbay: start s/A", "patchbay: end s/A", "patchbay: start s/P/a", "patchbay: run s", "patchbay: exit s",
		"patchbay: start ", "Kernel panic - not syncing: x", "WARNING: suspicious RCU usage", "------------[ cut here ]------------",
	}
	plan := []string{"A", "B", "P/a", "P/b"}
	for seed := range uint64(20000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		pick := func(from []string) string { return from[rng.IntN(len(from))] }
		s := begin(t)
		finished := false
		for range 1 + rng.IntN(30) {
			e := Event{
				Kind: kinds[rng.IntN(len(kinds))], Suite: "s", Test: pick(names), Text: pick(texts),
				Outcome: Outcome(1 + rng.IntN(int(Crash))), Failed: rng.IntN(2) == 0,
			}
			if e.Kind == Kmsg || e.Kind == Console {
				e.Record = &klog.Record{Seq: uint64(rng.IntN(40)), Facility: uint8(rng.IntN(2)), Text: pick(texts), Level: 4}
			}
			switch e.Kind {
			case Launch:
				finished = false
			case Done:
				finished = true
			}
			s.add(e)
		}
		c := judged(s, nil, plan...)
		if c.Outcome == 0 || c.Outcome == Pass && !finished {
			t.Fatalf("seed %d: the cell is %v without a finished guest", seed, c.Outcome)
		}
		seen := map[string]int{}
		for _, test := range c.Tests {
			seen[test.Name]++
			if test.Outcome > c.Outcome && !test.Outcome.Good() || test.Outcome == 0 {
				t.Fatalf("seed %d: %s is %v, the cell %v", seed, test.Name, test.Outcome, c.Outcome)
			}
		}
		for _, name := range plan {
			if seen[name] != 1 {
				t.Fatalf("seed %d: %s has %d outcomes", seed, name, seen[name])
			}
		}
	}
}
