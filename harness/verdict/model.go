// SPDX-License-Identifier: MIT

// Package verdict holds the outcomes of a run and the rules that turn what
// happened into them.
package verdict

import (
	"fmt"
	"strings"
	"time"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
)

// Outcome says how a test or a cell ended. The zero value is invalid.
type Outcome uint8

// The outcomes, from good to bad: of two that apply to a cell, the later wins.
const (
	_ Outcome = iota
	// Pass: the assertions held and the kernel had no complaint.
	Pass
	// Skip: the test said why it does not apply.
	Skip
	// NotRun: the test was planned and never started.
	NotRun
	// Fail: an assertion did not hold, or the test program broke.
	Fail
	// Splat: the kernel complained while the test ran.
	Splat
	// Timeout: the test did not end before its deadline.
	Timeout
	// Lost: the guest went away, and nothing says why.
	Lost
	// Crash: the kernel died while the test ran.
	Crash
	// Boot: the kernel under test did not come up. Cells only.
	Boot
	// Build: the series does not apply, or something does not compile. Cells only.
	Build
	// Infra: the harness or the host failed. Cells only.
	Infra
)

var outcomes = map[Outcome]string{
	Pass: "pass", Skip: "skip", NotRun: "notrun", Fail: "fail", Splat: "splat",
	Timeout: "timeout", Lost: "lost", Crash: "crash", Boot: "boot", Build: "build", Infra: "infra",
}

// Outcomes lists all outcomes, from good to bad.
func Outcomes() []Outcome {
	return []Outcome{Pass, Skip, NotRun, Fail, Splat, Timeout, Lost, Crash, Boot, Build, Infra}
}

// String returns the outcome's name, in lower case.
func (o Outcome) String() string {
	if s, ok := outcomes[o]; ok {
		return s
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// MarshalText writes the name.
func (o Outcome) MarshalText() ([]byte, error) {
	if _, ok := outcomes[o]; !ok {
		return nil, fmt.Errorf("no such outcome: %d", uint8(o))
	}
	return []byte(o.String()), nil
}

// UnmarshalText reads a name.
func (o *Outcome) UnmarshalText(text []byte) error {
	for candidate, name := range outcomes {
		if name == string(text) {
			*o = candidate
			return nil
		}
	}
	return fmt.Errorf("no such outcome: %q", text)
}

// Good reports whether the outcome keeps the exit code at 0.
func (o Outcome) Good() bool { return o == Pass || o == Skip }

// Test is one test or sub-test with its outcome.
type Test struct {
	Suite string `json:"suite"`
	// Name is the Go test's full name, as in TestSockmapBasic/sockmap_copy.
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Reason says in one line why the outcome is not pass.
	Reason   string        `json:"reason,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	// Output is what the test printed, unprintable bytes escaped.
	Output string `json:"output,omitempty"`
	// Log holds the kernel's records from the test's start to its end.
	Log    []klog.Record `json:"log,omitempty"`
	Splats []klog.Splat  `json:"splats,omitempty"`
}

// Parent is the name of the test that has this sub-test, or "".
func Parent(test string) string {
	return test[:max(0, strings.LastIndexByte(test, '/'))]
}

// Phase is a stretch of a cell's time.
type Phase struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration_ns"`
	// Cached is set when the phase found its result made already.
	Cached bool `json:"cached,omitempty"`
}

// Failure is why a cell has no verdict about its tests.
type Failure struct {
	Blame   fault.Blame `json:"blame"`
	Doing   string      `json:"doing"`
	Subject string      `json:"subject,omitempty"`
	// Message is the whole error, several lines.
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
}

// NewFailure describes err; of several failures, the one that decides the exit
// code, with the message of all.
func NewFailure(err error) *Failure {
	f := &Failure{Blame: fault.Harness, Message: err.Error()}
	if e := fault.Deciding(err); e != nil {
		f.Blame, f.Doing, f.Subject, f.Next = e.Blame, e.Doing, e.Subject, e.Next
	}
	return f
}

// Patch is a patch of the series that a cell's kernel carries.
type Patch struct {
	Subject string `json:"subject"`
	Author  string `json:"author"`
	Commit  string `json:"commit"`
}

// Cell is one kernel in one guest with its tests.
type Cell struct {
	// ID names the cell: base, series and vmconfig.
	ID       string   `json:"id"`
	Base     string   `json:"base"`
	Source   string   `json:"source"`
	Series   []string `json:"series,omitempty"`
	Patches  []Patch  `json:"patches,omitempty"`
	Config   string   `json:"config"`
	Commit   string   `json:"commit,omitempty"`
	Tree     string   `json:"tree,omitempty"`
	Artifact string   `json:"artifact,omitempty"`
	// Kernel is the release that the guest reported.
	Kernel string `json:"kernel,omitempty"`
	Accel  string `json:"accel,omitempty"`
	CPUs   int    `json:"cpus"`
	// Memory of the guest, in bytes.
	Memory int64 `json:"memory_bytes"`
	// Boots counts the guests that were started.
	Boots   int     `json:"boots"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	// Failure is set with the outcomes build and infra.
	Failure *Failure `json:"failure,omitempty"`
	Phases  []Phase  `json:"phases,omitempty"`
	Tests   []Test   `json:"tests"`
	// Log holds the kernel's records outside any test, and Splats the
	// complaints among them.
	Log    []klog.Record `json:"log,omitempty"`
	Splats []klog.Splat  `json:"splats,omitempty"`
	// KernelLog holds every record of every guest, in order. The tests and Log
	// have the same records, except those of parents that are not listed
	// because they only repeat what their sub-tests say.
	KernelLog []LogLine `json:"-"`
	// Trouble is what the agent and the harness could not do, though it did
	// not end the run.
	Trouble []string `json:"trouble,omitempty"`
	VNG     []string `json:"vng,omitempty"`
	QEMU    []string `json:"qemu,omitempty"`
}

// LogLine is a record of a cell's kernel log with what is known about its place.
type LogLine struct {
	klog.Record
	// Boot is the number of the guest, from 1.
	Boot int
	// Suite and Test name the test that was on, or are empty.
	Suite, Test string
	// Splats are the complaints whose report begins here.
	Splats []klog.Splat
}

// Host describes the machine that the run took place on.
type Host struct {
	Name     string `json:"name"`
	OS       string `json:"os"`
	Kernel   string `json:"kernel"`
	CPUs     int    `json:"cpus"`
	Memory   int64  `json:"memory_bytes"`
	KVM      bool   `json:"kvm"`
	KVMError string `json:"kvm_error,omitempty"`
}

// SchemaVersion is the version of the JSON form of Run.
const SchemaVersion = 1

// Run is everything about one call of patchbay run.
type Run struct {
	Schema   int               `json:"schema"`
	ID       string            `json:"id"`
	Started  time.Time         `json:"started"`
	Duration time.Duration     `json:"duration_ns"`
	Command  []string          `json:"command"`
	Host     Host              `json:"host"`
	Versions map[string]string `json:"versions"`
	Cells    []Cell            `json:"cells"`
	ExitCode int               `json:"exit_code"`
}

// Exit returns the exit code that the cells ask for.
func (r *Run) Exit() int {
	code := fault.ExitOK
	for i := range r.Cells {
		code = worse(code, r.Cells[i].exit())
	}
	if len(r.Cells) == 0 {
		return fault.ExitHarness
	}
	return code
}

func (c *Cell) exit() int {
	switch {
	case c.Failure != nil && c.Failure.Blame == fault.Configuration:
		return fault.ExitConfiguration
	case c.Outcome == Infra || c.Outcome == 0:
		return fault.ExitHarness
	case c.Outcome == Build:
		return fault.ExitBuild
	case c.Outcome.Good():
		return fault.ExitOK
	default:
		return fault.ExitFailed
	}
}

// worse picks the exit code that says less good things: a harness at fault
// makes everything else doubtful, then usage, build and test failures follow.
func worse(a, b int) int {
	rank := map[int]int{fault.ExitOK: 0, fault.ExitFailed: 1, fault.ExitBuild: 2, fault.ExitConfiguration: 3, fault.ExitHarness: 4}
	if rank[b] > rank[a] {
		return b
	}
	return a
}
