// SPDX-License-Identifier: MIT

package verdict

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
)

func TestOutcomeText(t *testing.T) {
	all := Outcomes()
	if len(all) != len(outcomes) || !slices.IsSorted(all) {
		t.Errorf("Outcomes lists %v, but these have names: %v", all, outcomes)
	}
	for _, o := range all {
		text, err := o.MarshalText()
		var back Outcome
		if err != nil || back.UnmarshalText(text) != nil || back != o {
			t.Errorf("%v is written %q (%v) and read as %v", o, text, err, back)
		}
	}
	for _, o := range []Outcome{0, Infra + 1} {
		if text, err := o.MarshalText(); err == nil {
			t.Errorf("outcome %d is written %q", uint8(o), text)
		}
	}
	for _, text := range []string{"", "PASS", "outcome(0)", "passed"} {
		var o Outcome
		if o.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is read as %v", text, o)
		}
	}
}

func TestOnlyPassAndSkipAreGood(t *testing.T) {
	for o := range Infra + 2 {
		if o.Good() != (o == Pass || o == Skip) {
			t.Errorf("%v: good is %v", o, o.Good())
		}
	}
}

func TestParent(t *testing.T) {
	for name, want := range map[string]string{"": "", "TestA": "", "TestA/b": "TestA", "TestA/b/c": "TestA/b"} {
		if got := Parent(name); got != want {
			t.Errorf("the parent of %q is %q, want %q", name, got, want)
		}
	}
}

// Every outcome of a cell has the exit code that the design gives it.
func TestExitOfOneCell(t *testing.T) {
	want := map[Outcome]int{
		Pass: 0, Skip: 0, NotRun: 1, Fail: 1, Splat: 1, Timeout: 1, Lost: 1, Crash: 1, Boot: 1, Build: 3, Infra: 4,
		0: 4,
	}
	for o := range Infra + 1 {
		run := Run{Cells: []Cell{{Outcome: o}}}
		if got := run.Exit(); got != want[o] {
			t.Errorf("%v: exit code %d, want %d", o, got, want[o])
		}
	}
	if got := (&Run{}).Exit(); got != fault.ExitHarness {
		t.Errorf("a run without cells has exit code %d", got)
	}
}

func TestExitOfSeveralCells(t *testing.T) {
	usage := Cell{Outcome: Infra, Failure: &Failure{Blame: fault.Configuration}}
	host := Cell{Outcome: Infra, Failure: &Failure{Blame: fault.Harness}}
	build := Cell{Outcome: Build, Failure: &Failure{Blame: fault.Kernel}}
	fail, pass := Cell{Outcome: Fail}, Cell{Outcome: Pass}
	byBadness := []struct {
		Cell
		code int
	}{{pass, 0}, {fail, 1}, {build, 3}, {usage, 2}, {host, 4}}
	for i, worse := range byBadness {
		for _, better := range byBadness[:i+1] {
			for _, cells := range [][]Cell{{worse.Cell, better.Cell}, {better.Cell, worse.Cell}} {
				if got := (&Run{Cells: cells}).Exit(); got != worse.code {
					t.Errorf("%v and %v: exit code %d, want %d", cells[0].Outcome, cells[1].Outcome, got, worse.code)
				}
			}
		}
	}
}

func TestNewFailure(t *testing.T) {
	cause := &fault.Error{Blame: fault.Kernel, Doing: "applying", Subject: "a.patch", Said: "no", Next: "rebase", Err: errors.New("it does not")}
	f := NewFailure(fmt.Errorf("cell 1: %w", cause))
	want := Failure{Blame: fault.Kernel, Doing: "applying", Subject: "a.patch", Message: "cell 1: " + cause.Error(), Next: "rebase"}
	if *f != want {
		t.Errorf("got %+v\nwant %+v", *f, want)
	}
	if f := NewFailure(errors.New("odd")); f.Blame != fault.Harness || f.Message != "odd" {
		t.Errorf("an error without blame became %+v", *f)
	}
}

// A report and the process that wrote it must not disagree on whose fault it was.
func TestFailureAgreesWithExitCode(t *testing.T) {
	kernel := &fault.Error{Blame: fault.Kernel, Doing: "compiling"}
	usage := &fault.Error{Blame: fault.Configuration, Doing: "looking up"}
	host := &fault.Error{Blame: fault.Harness, Doing: "starting"}
	for name, err := range map[string]error{
		"kernel":                  kernel,
		"test":                    &fault.Error{Blame: fault.Test},
		"configuration":           usage,
		"harness":                 host,
		"no blame":                errors.New("x"),
		"several":                 multierror.Append(kernel, usage),
		"several, other order":    multierror.Append(usage, kernel),
		"several, one blameless":  multierror.Append(kernel, errors.New("x")),
		"several, wrapped":        fmt.Errorf("more: %w", multierror.Append(kernel, host, usage)),
		"blame above another":     &fault.Error{Blame: fault.Configuration, Err: host},
		"blame above a blameless": &fault.Error{Blame: fault.Kernel, Err: errors.New("x")},
	} {
		f := NewFailure(err)
		o := Infra
		if f.Blame == fault.Kernel || f.Blame == fault.Test {
			o = Build
		}
		run := Run{Cells: []Cell{{Outcome: o, Failure: f}}}
		if got, want := run.Exit(), fault.ExitCode(err); got != want {
			t.Errorf("%s: the report's exit code is %d, the process's %d", name, got, want)
		}
	}
}
