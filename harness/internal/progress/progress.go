// SPDX-License-Identifier: MIT

// Package progress carries news about long work from the rooms that do it to
// whoever shows it. The rooms never draw.
package progress

// State says where a step stands. The zero value is invalid.
type State uint8

// The states of a step.
const (
	_ State = iota
	// Started opens a step.
	Started
	// Running updates an open step; sent as often as there is news.
	Running
	// Finished closes a step that worked.
	Finished
	// Failed closes a step that did not; the error itself is returned by the
	// function that did the work.
	Failed
)

// Event is one piece of news about one step.
type Event struct {
	// Step names the work: "import", "checkout", "kernel", "libbpf", "tests", "guest".
	Step string
	// State is where the step stands now.
	State State
	// Done and Total count units (compile units, files); Total is 0 where unknown.
	Done, Total int
	// Detail is what is being worked on, in a few words.
	Detail string
	// Cached is set on Finished when nothing had to be done.
	Cached bool
}

// Func receives events. It must be safe for concurrent use and must not block
// for long. A nil Func is allowed: use Send.
type Func func(Event)

// Send delivers the event if there is anyone to hear it.
func (f Func) Send(e Event) {
	if f != nil {
		f(e)
	}
}
