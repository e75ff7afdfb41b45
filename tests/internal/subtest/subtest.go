// SPDX-License-Identifier: GPL-2.0-only

// Package subtest runs the sub-tests of a suite inside a patchbay guest.
//
// It marks in the kernel log where each sub-test starts and ends, so that the
// harness can tell which sub-test a kernel message belongs to; it fails a
// sub-test that leaves file descriptors or BPF objects behind; and it can list
// the sub-tests without running them.
//
// The harness sets the environment:
//
//	PATCHBAY_GUEST  1 inside a guest; anything else skips
//	PATCHBAY_SUITE  name of the suite, the first word of every marker
//	PATCHBAY_SCALE  factor for every deadline, a float, default 1
//	PATCHBAY_LIST   1 lists the sub-tests and runs none
package subtest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
)

const (
	envGuest = "PATCHBAY_GUEST"
	envSuite = "PATCHBAY_SUITE"
	envScale = "PATCHBAY_SCALE"
	envList  = "PATCHBAY_LIST"
)

// A Test is one sub-test.
type Test struct {
	// Name is the upstream name, spaces included where upstream has them.
	Name string
	// Func is the body. It must not call t.Parallel or t.Run: the kernel log
	// is one stream, and the harness plans with the names that it was listed.
	Func func(t *testing.T)
}

// Run runs each of tests with t.Run, in order.
//
// With PATCHBAY_LIST=1 it prints one line "patchbay-list: TestName/sub" per
// sub-test to standard output instead, with the name as package testing
// rewrites it. Outside a guest it skips t.
func Run(t *testing.T, tests []Test) {
	t.Helper()
	if err := validate(tests); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(envList) == "1" {
		if err := list(os.Stdout, t.Name(), tests); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Getenv(envGuest) != "1" {
		t.Skip("needs a patchbay guest: run `make vmtest`")
	}
	suite := os.Getenv(envSuite)
	if suite == "" {
		t.Fatalf("%s is not set: kernel log records could not be attributed", envSuite)
	}
	runner{suite: suite, mark: writeKmsg, objects: bpfObjects}.run(t, tests)
}

// Scale multiplies d by PATCHBAY_SCALE, which the harness sets to how much
// slower than a native machine the guest may be. It panics on a factor that is
// no positive number: a deadline that is silently wrong is worse.
func Scale(d time.Duration) time.Duration {
	value := os.Getenv(envScale)
	if value == "" {
		return d
	}
	factor, err := strconv.ParseFloat(value, 64)
	if err != nil || !(factor > 0) || math.IsInf(factor, 0) {
		panic(fmt.Sprintf("%s=%q is not a positive number", envScale, value))
	}
	if scaled := float64(d) * factor; scaled < math.MaxInt64 {
		return time.Duration(scaled)
	}
	return math.MaxInt64
}

// runner is what Run needs from the machine, so that unit tests need no guest.
type runner struct {
	suite string
	// mark writes one record into the kernel log.
	mark func(record string) error
	// objects names the BPF maps and programs that the kernel holds.
	// nil skips that check.
	objects func() (map[string]bool, error)
}

func (r runner) run(t *testing.T, tests []Test) {
	t.Helper()
	// The runtime opens its own epoll descriptors on first use of a pollable
	// file. Have that happen now, lest the first sub-test be blamed for it.
	if err := startPoller(); err != nil {
		t.Fatalf("start the runtime's poller: %v", err)
	}
	for _, test := range tests {
		t.Run(test.Name, func(t *testing.T) { r.runOne(t, test) })
	}
}

func (r runner) runOne(t *testing.T, test Test) {
	if err := r.mark("<6>patchbay: start " + r.suite + "/" + t.Name()); err != nil {
		t.Fatalf("mark the start in the kernel log: %v", err)
	}
	// Cleanups run last in, first out: this one comes after all of Func's own,
	// also when Func panics.
	t.Cleanup(func() {
		if err := r.mark("<6>patchbay: end " + r.suite + "/" + t.Name()); err != nil {
			t.Errorf("mark the end in the kernel log: %v", err)
		}
	})
	before, err := openDescriptors()
	if err != nil {
		t.Fatalf("list open descriptors: %v", err)
	}
	var objects map[string]bool
	if r.objects != nil {
		if objects, err = r.objects(); err != nil {
			t.Fatalf("list BPF objects: %v", err)
		}
	}
	// Finalizers close forgotten descriptors: without a collector they stay
	// open, and a leak is seen every time instead of now and then.
	gc := debug.SetGCPercent(-1)
	t.Cleanup(func() {
		defer debug.SetGCPercent(gc)
		after, err := openDescriptors()
		if err != nil {
			t.Errorf("list open descriptors: %v", err)
			return
		}
		if left := after.without(before); len(left) > 0 {
			t.Errorf("left behind %d file descriptors:\n\t%s", len(left), strings.Join(left, "\n\t"))
			return
		}
		// A failure may well have left objects behind; one complaint is enough.
		if r.objects == nil || t.Failed() {
			return
		}
		if err := awaitObjects(objects, r.objects, Scale(objectsDeadline)); err != nil {
			t.Error(err)
		}
	})
	test.Func(t)
}

// writeKmsg opens /dev/kmsg anew for each record because the kernel limits the
// rate per open file (10 records in 5 s) and drops what is beyond it.
func writeKmsg(record string) error {
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, record+"\n")
	return errors.Join(err, f.Close())
}

func validate(tests []Test) error {
	seen := map[string]bool{}
	for _, test := range tests {
		name := rewrite(test.Name)
		switch {
		case name == "" || strings.Contains(name, "/"):
			return fmt.Errorf("sub-test name %q: empty, or has a slash", test.Name)
		case seen[name]:
			return fmt.Errorf("sub-test name %q is there twice", test.Name)
		}
		seen[name] = true
	}
	return nil
}

func list(w io.Writer, parent string, tests []Test) error {
	var b strings.Builder
	for _, test := range tests {
		fmt.Fprintf(&b, "patchbay-list: %s/%s\n", parent, rewrite(test.Name))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rewrite does to a sub-test's name what package testing does to it.
func rewrite(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch {
		case unicode.IsSpace(r):
			b.WriteByte('_')
		case !strconv.IsPrint(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
