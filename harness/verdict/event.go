// SPDX-License-Identifier: MIT

package verdict

import (
	"time"

	"patchbay/harness/klog"
)

// Kind says what an Event is about.
type Kind string

// The kinds of events, in the order in which a good run has them.
const (
	// Launch: a guest is started. Text says why if it is not the first.
	Launch Kind = "launch"
	// Hello: the agent answered; Text is the kernel's release.
	Hello Kind = "hello"
	// Begin: the program of Suite is to be run.
	Begin Kind = "begin"
	// TestStart and TestEnd frame Test.
	TestStart Kind = "test-start"
	TestEnd   Kind = "test-end"
	// Output is what Test, or Suite outside any test, printed.
	Output Kind = "output"
	// Kmsg carries a Record of the kernel log; Console one that only the
	// console had, because the kernel died before the agent could send it.
	Kmsg    Kind = "kmsg"
	Console Kind = "console"
	// Exited: the program of Suite ended; Text says how if not well.
	Exited Kind = "exited"
	// Done: the agent closed the stream and all counts agree.
	Done Kind = "done"

	// Trouble: something did not work, yet the run goes on.
	Trouble Kind = "trouble"
	// Deadline: the harness lost patience with Test or Suite, or with the
	// boot when both are empty.
	Deadline Kind = "deadline"
	// Cancelled: the user ended the run.
	Cancelled Kind = "cancelled"
	// Broken: the stream from the agent ended without Done, or broke the
	// protocol; Text says how.
	Broken Kind = "broken"
	// Gone: QEMU ended by itself; Text is the end of what it said.
	Gone Kind = "gone"
)

// Event is one thing that happened while a cell ran. A cell's events, in
// order, are all that its verdict depends on.
type Event struct {
	At   time.Time `json:"at"`
	Kind Kind      `json:"kind"`
	// Boot numbers the guests of the cell, from 1.
	Boot  int    `json:"boot"`
	Suite string `json:"suite,omitempty"`
	Test  string `json:"test,omitempty"`
	// Outcome belongs to TestEnd: Pass, Fail or Skip.
	Outcome Outcome `json:"outcome,omitzero"`
	// Elapsed belongs to TestEnd and Exited.
	Elapsed time.Duration `json:"elapsed_ns,omitempty"`
	Text    string        `json:"text,omitempty"`
	// Failed belongs to Exited: the program did not end with status 0.
	Failed bool         `json:"failed,omitempty"`
	Record *klog.Record `json:"record,omitempty"`
}

// Suite is what was planned of one suite.
type Suite struct {
	Name string `json:"name"`
	// Tests holds the full names of the tests and sub-tests that must run.
	Tests []string `json:"tests"`
}
