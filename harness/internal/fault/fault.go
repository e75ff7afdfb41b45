// SPDX-License-Identifier: MIT

// Package fault holds the error type that every room of the harness returns:
// it says who is to blame, what was being done, to what, what the tool said
// and what to do next.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// Blame says whose fault an error is. The zero value is invalid.
type Blame uint8

// The parties that an error can be blamed on.
const (
	_ Blame = iota
	// Kernel is the kernel under test or the series on top of it: a patch
	// that does not apply, a kernel or libbpf that does not compile.
	Kernel
	// Test is a test's source: it does not compile, or lists no tests.
	Test
	// Configuration is what the user asked for: flags, names, vmconfigs, kconfig.
	Configuration
	// Harness is patchbay itself or the machine it runs on.
	Harness
)

// String names the party, in lower case.
func (b Blame) String() string {
	switch b {
	case Kernel:
		return "kernel"
	case Test:
		return "test"
	case Configuration:
		return "configuration"
	case Harness:
		return "harness"
	default:
		return fmt.Sprintf("blame(%d)", uint8(b))
	}
}

// MarshalText makes blame readable in JSON.
func (b Blame) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (b *Blame) UnmarshalText(text []byte) error {
	for _, c := range []Blame{Kernel, Test, Configuration, Harness} {
		if c.String() == string(text) {
			*b = c
			return nil
		}
	}
	return fmt.Errorf("unknown blame %q", text)
}

// Error is a failure with everything a reader needs in order to act on it.
type Error struct {
	// Blame is whose fault it is; it decides the exit code.
	Blame Blame
	// Doing is what was under way: "applying the series".
	Doing string
	// Subject is what it was done to: a path, a name.
	Subject string
	// Said is what the tool, the kernel or the library said; it may have
	// several lines.
	Said string
	// Next is what to do about it.
	Next string
	// Err is the cause, or nil.
	Err error
}

// Error renders one paragraph: doing, subject, cause, then the tool's words
// and the next step on lines of their own.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Doing)
	if e.Subject != "" {
		b.WriteString(": " + e.Subject)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if said := strings.TrimRight(e.Said, "\n"); said != "" {
		b.WriteString("\n    " + strings.ReplaceAll(said, "\n", "\n    "))
	}
	if e.Next != "" {
		b.WriteString("\n  next: " + e.Next)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// The process exit codes of patchbay.
const (
	ExitOK            = 0 // all as expected
	ExitFailed        = 1 // something under test failed in the guest
	ExitConfiguration = 2 // usage or configuration
	ExitBuild         = 3 // does not apply or does not compile
	ExitHarness       = 4 // the harness or the host failed
)

// ExitCode maps an error to the exit code of the process. What fails inside
// the guest is a verdict, not an error, so an error blamed on the kernel or on
// a test always means that it does not apply or does not compile. When several
// failures were collected the one that Deciding picks counts. An error without
// blame counts as the harness's.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	e := Deciding(err)
	if e == nil {
		return ExitHarness
	}
	switch e.Blame {
	case Kernel, Test:
		return ExitBuild
	case Configuration:
		return ExitConfiguration
	default:
		return ExitHarness
	}
}

// Deciding returns the error with blame that says what err amounts to: the
// outermost; or, when several failures were collected and none of them is the
// cause of one that carries blame itself, the worst of theirs: harness, then
// configuration, then build. It is nil if that is an error without blame.
func Deciding(err error) *Error {
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		switch c := cause.(type) {
		case *Error:
			return c
		case *multierror.Error:
			return worst(c.Errors)
		}
	}
	return nil
}

func worst(errs []error) *Error {
	rank := map[int]int{ExitBuild: 1, ExitConfiguration: 2, ExitHarness: 3}
	var decides error
	for _, err := range errs {
		if rank[ExitCode(err)] > rank[ExitCode(decides)] {
			decides = err
		}
	}
	return Deciding(decides)
}
