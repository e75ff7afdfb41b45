// SPDX-License-Identifier: MIT

package run

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/agent/agenttest"
	"patchbay/harness/verdict"
	"patchbay/harness/wire"
)

// play runs a cell with one suite of tests A, B and C against fakes, one for
// each boot, and returns the judged cell.
func play(t *testing.T, ctx context.Context, fakes ...*agenttest.Fake) (*verdict.Cell, []verdict.Event) {
	t.Helper()
	suite := Suite{Suite: verdict.Suite{Name: "s", Tests: []string{"A", "B", "C"}}, Path: "prog", SelfMarking: true}
	console := func(n int) string { return filepath.Join(t.TempDir(), fmt.Sprint(n)) }
	paths := map[int]string{}
	for n := range fakes {
		paths[n+1] = console(n)
		fakes[n].Console = paths[n+1]
	}
	var events []verdict.Event
	err := Run(ctx, Cell{
		Suites:    []Suite{suite},
		Deadlines: Deadlines{Boot: 2 * time.Second, Test: 300 * time.Millisecond, Suite: 2 * time.Second},
		Scale:     1,
		MaxBoots:  len(fakes),
		Boot: func(_ context.Context, n int) (Guest, error) {
			return fakes[n-1].Start(), nil
		},
		Consoles: func(n int) []string { return []string{paths[n]} },
	}, func(e verdict.Event) { events = append(events, e) })
	if err != nil {
		t.Fatal(err)
	}
	cell := &verdict.Cell{}
	verdict.Judge(cell, []verdict.Suite{suite.Suite}, events, nil)
	return cell, events
}

// program is a fake with one program that runs the tests asked for; special
// replaces what some of them do.
func program(special map[string]func(p *agenttest.Process)) *agenttest.Fake {
	return &agenttest.Fake{Programs: map[string]agenttest.Program{"prog": func(p *agenttest.Process) int {
		code := 0
		for _, name := range []string{"A", "B", "C"} {
			if p.Killed != nil && closed(p.Killed) {
				return 2
			}
			if !asked(p, name) {
				continue
			}
			if do := special[name]; do != nil {
				do(p)
			} else {
				p.Test(name, "PASS", nil)
			}
		}
		return code
	}}}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func asked(p *agenttest.Process, name string) bool {
	for _, arg := range p.Args {
		if pattern, ok := strings.CutPrefix(arg, "-test.run="); ok {
			return strings.ContainsAny(pattern, name)
		}
	}
	return false
}

const oops = `[    1.000000][   T42] BUG: kernel NULL pointer dereference, address: 0000000000000010
[    1.000001][   T42] #PF: supervisor read access in kernel mode
[    1.000002][   T42] Oops: Oops: 0000 [#1] PREEMPT SMP
[    1.000003][   T42] RIP: 0010:sk_psock_backlog+0x12/0x340
[    1.000004][   T42] Kernel panic - not syncing: Fatal exception
`

func TestOutcomes(t *testing.T) {
	for name, tc := range map[string]struct {
		fakes []*agenttest.Fake
		// want has cell, A, B and C; why is in the cell's reason.
		want string
		why  string
	}{
		"all well": {
			fakes: []*agenttest.Fake{program(nil)},
			want:  "pass: A pass, B pass, C pass",
		},
		"skip": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) {
					p.Test("B", "SKIP", func() { p.Print("    b_test.go:3: not here\n") })
				},
			})},
			want: "pass: A pass, B skip, C pass",
		},
		"assertion": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) {
					p.Test("B", "FAIL", func() { p.Print("    b_test.go:3: got 1, want 2\n") })
				},
			})},
			want: "fail: A pass, B fail, C pass", why: "got 1, want 2",
		},
		"splat under held assertions": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) {
					p.Test("B", "PASS", func() {
						p.Log("------------[ cut here ]------------")
						p.Log("WARNING: CPU: 0 PID: 42 at net/core/skmsg.c:600 sk_psock_backlog+0x12/0x340")
						p.Log("---[ end trace 0000000000000000 ]---")
					})
				},
			})},
			want: "splat: A pass, B splat, C pass", why: "sk_psock_backlog",
		},
		"splat outside any test": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"C": func(p *agenttest.Process) {
					p.Test("C", "PASS", nil)
					p.Log("WARNING: CPU: 0 PID: 42 at net/core/skmsg.c:600 sk_psock_backlog+0x12/0x340")
					p.Log("---[ end trace 0000000000000000 ]---")
				},
			})},
			want: "splat: A pass, B pass, C pass", why: "outside any test",
		},
		"crash, the rest in a second guest": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) { p.Test("B", "PASS", func() { p.Die(oops) }) },
			}), program(nil)},
			want: "crash: A pass, B crash, C pass", why: "sk_psock_backlog",
		},
		"crash before the test's own word got out": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) { p.Log("<6>patchbay: start s/B"); p.Die(oops) },
			}), program(nil)},
			want: "crash: A pass, B crash, C pass",
		},
		"gone without a word": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) { p.Test("B", "PASS", func() { p.Die("") }) },
			}), program(nil)},
			want: "lost: A pass, B lost, C pass",
		},
		"hang that can be ended": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) { p.Print("\x16=== RUN   B\n"); p.Hang() },
			}), program(nil)},
			want: "timeout: A pass, B timeout, C pass", why: "test deadline",
		},
		"test program dies": {
			fakes: []*agenttest.Fake{{Programs: map[string]agenttest.Program{"prog": func(p *agenttest.Process) int {
				p.Test("A", "PASS", nil)
				p.Print("\x16=== RUN   B\n")
				p.PrintError("panic: oh no\n")
				return 2
			}}}, program(nil)},
			want: "fail: A pass, B fail, C pass", why: "ended in the middle",
		},
		"test program leaves early": {
			fakes: []*agenttest.Fake{{Programs: map[string]agenttest.Program{"prog": func(p *agenttest.Process) int {
				p.Test("A", "PASS", nil)
				return 0
			}}}},
			want: "notrun: A pass, B notrun, C notrun",
		},
		"test program fails although its tests pass": {
			fakes: []*agenttest.Fake{{Programs: map[string]agenttest.Program{"prog": func(p *agenttest.Process) int {
				for _, name := range []string{"A", "B", "C"} {
					p.Test(name, "PASS", nil)
				}
				return 1
			}}}},
			want: "fail: A pass, B pass, C pass", why: "the program failed",
		},
		"no such program": {
			fakes: []*agenttest.Fake{{}},
			want:  "notrun: A notrun, B notrun, C notrun",
		},
		"no done": {
			fakes: []*agenttest.Fake{func() *agenttest.Fake { f := program(nil); f.NoDone = true; return f }()},
			want:  "lost: A pass, B pass, C pass",
		},
		"counts that differ": {
			fakes: []*agenttest.Fake{func() *agenttest.Fake {
				f := program(nil)
				f.Lie = func(d *wire.Done) { d.OutputBytes++ }
				return f
			}()},
			want: "lost: A pass, B pass, C pass", why: "counted",
		},
		"gap in the kernel log": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) { p.Test("B", "PASS", func() { p.SkipLog(3) }) },
			})},
			want: "lost: A pass, B pass, C pass", why: "gaps",
		},
		"broken protocol": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) {
					p.Test("B", "PASS", func() { p.Raw([]byte("\xff\xff\xff\xff")); p.Hang() })
				},
			})},
			want: "lost: A pass, B lost, C notrun", why: "malformed",
		},
		"never comes up": {
			fakes: []*agenttest.Fake{{Deaf: true}},
			want:  "boot: A notrun, B notrun, C notrun", why: "boot deadline",
		},
		"other version": {
			fakes: []*agenttest.Fake{{Version: 99}},
			want:  "boot: A notrun, B notrun, C notrun", why: "version",
		},
		"result forged after a failure": {
			fakes: []*agenttest.Fake{program(map[string]func(*agenttest.Process){
				"B": func(p *agenttest.Process) {
					p.Test("B", "FAIL", nil)
					p.Print("\x16--- PASS: B (0.00s)\n")
				},
			})},
			want: "fail: A pass, B fail, C pass",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cell, _ := play(t, t.Context(), tc.fakes...)
			var tests []string
			for _, test := range cell.Tests {
				tests = append(tests, test.Name+" "+test.Outcome.String())
			}
			got := cell.Outcome.String() + ": " + strings.Join(tests, ", ")
			if got != tc.want {
				t.Errorf("got  %s (%s)\nwant %s", got, cell.Reason, tc.want)
			}
			if !strings.Contains(cell.Reason, tc.why) {
				t.Errorf("the reason %q lacks %q", cell.Reason, tc.why)
			}
			if cell.Boots != len(tc.fakes) {
				t.Errorf("%d boots, want %d", cell.Boots, len(tc.fakes))
			}
		})
	}
}

func TestLogIsAttributed(t *testing.T) {
	cell, _ := play(t, t.Context(), program(map[string]func(*agenttest.Process){
		"A": func(p *agenttest.Process) { p.Test("A", "PASS", func() { p.Log("from A") }) },
		"B": func(p *agenttest.Process) { p.Log("between"); p.Test("B", "PASS", func() { p.Log("from B") }) },
	}))
	find := func(text string) string {
		for _, test := range cell.Tests {
			for _, r := range test.Log {
				if r.Text == text {
					return test.Name
				}
			}
		}
		for _, r := range cell.Log {
			if r.Text == text {
				return "cell"
			}
		}
		return "nobody"
	}
	for text, want := range map[string]string{"from A": "A", "from B": "B", "between": "cell"} {
		if got := find(text); got != want {
			t.Errorf("%q belongs to %s, want %s", text, got, want)
		}
	}
}

func TestInterruption(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cell, _ := play(t, ctx, program(map[string]func(*agenttest.Process){
		"B": func(p *agenttest.Process) { p.Print("\x16=== RUN   B\n"); cancel(); p.Hang() },
	}), program(nil))
	if cell.Outcome.Good() || !strings.Contains(cell.Reason, "interrupted") || cell.Boots != 1 {
		t.Errorf("an interrupted run: %v, %q, %d boots", cell.Outcome, cell.Reason, cell.Boots)
	}
}

func TestHostTroubleIsAnError(t *testing.T) {
	want := errors.New("no vng")
	err := Run(t.Context(), Cell{MaxBoots: 1, Boot: func(context.Context, int) (Guest, error) { return nil, want }}, func(verdict.Event) {})
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestOutputIsKeptAndClean(t *testing.T) {
	cell, _ := play(t, t.Context(), program(map[string]func(*agenttest.Process){
		"A": func(p *agenttest.Process) {
			p.Test("A", "PASS", func() { p.Print("clear \x1b[2J screen\n\xff\tend without newline") })
		},
	}))
	if diff := cmp.Diff("clear \\x1b[2J screen\n\\xff    end without newline\n", cell.Tests[0].Output); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
