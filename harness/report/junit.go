// SPDX-License-Identifier: MIT

package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// logLimit is how many lines of kernel log a test case in JUnit carries.
const logLimit = 500

// WriteJUnit writes the run as JUnit XML: a test suite for each suite of each
// cell. fail and splat become failures; crash, timeout, lost and notrun become
// errors. What is wrong with a cell and is no test's fault is an error of its
// own, so that a run whose exit code is not 0 never looks green.
func WriteJUnit(w io.Writer, run *verdict.Run) error {
	all := junit.Testsuites{Name: clean("patchbay " + run.ID), Time: xmlSeconds(run.Duration)}
	add := func(s junit.Testsuite) {
		s.ID = len(all.Suites)
		s.Hostname = clean(run.Host.Name)
		s.SetTimestamp(run.Started.UTC())
		all.AddSuite(s)
	}
	for i := range run.Cells {
		c := &run.Cells[i]
		for _, name := range suitesOf(c) {
			add(junitSuite(c, name))
		}
		if tc := junitCell(c); tc != nil {
			s := junit.Testsuite{Name: clean(c.ID), Time: xmlSeconds(0)}
			describe(&s, c)
			s.AddTestcase(*tc)
			add(s)
		}
	}
	if run.ExitCode != 0 && all.Failures+all.Errors == 0 {
		message := fmt.Sprintf("exit code %d: %s", run.ExitCode, exitMeaning(run.ExitCode))
		s := junit.Testsuite{Name: "patchbay", Time: xmlSeconds(0)}
		s.AddTestcase(junit.Testcase{
			Name: "run", Classname: "patchbay", Time: xmlSeconds(0),
			Error: &junit.Result{Message: message, Type: "run", Data: message},
		})
		add(s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	return all.WriteXML(w)
}

func junitSuite(c *verdict.Cell, name string) junit.Testsuite {
	s := junit.Testsuite{Name: clean(c.ID + "/" + name)}
	describe(&s, c)
	var sum time.Duration
	for i := range c.Tests {
		if t := &c.Tests[i]; t.Suite == name {
			sum += t.Duration
			s.AddTestcase(junitTest(s.Name, t))
		}
	}
	s.Time = xmlSeconds(sum)
	return s
}

func describe(s *junit.Testsuite, c *verdict.Cell) {
	for _, p := range [][2]string{
		{"cell", c.ID},
		{"kernel", c.Kernel},
		{"source", c.Source},
		{"commit", c.Commit},
		{"accel", c.Accel},
		{"cpus", fmt.Sprint(c.CPUs)},
		{"memory_bytes", fmt.Sprint(c.Memory)},
	} {
		if p[1] != "" {
			s.AddProperty(p[0], clean(p[1]))
		}
	}
}

func junitTest(class string, t *verdict.Test) junit.Testcase {
	tc := junit.Testcase{Name: clean(t.Name), Classname: class, Time: xmlSeconds(t.Duration), Status: t.Outcome.String()}
	if t.Output != "" {
		tc.SystemOut = &junit.Output{Data: klog.EscapeLines(t.Output)}
	}
	switch t.Outcome {
	case verdict.Pass:
	case verdict.Skip:
		tc.Skipped = &junit.Result{Message: clean(t.Reason)}
	case verdict.Fail, verdict.Splat:
		tc.Failure = junitResult(t.Outcome, t.Reason, t.Splats, t.Log)
	default:
		tc.Error = junitResult(t.Outcome, t.Reason, t.Splats, t.Log)
	}
	if !t.Outcome.Good() {
		tc.SystemErr = junitLog(t.Log)
	}
	return tc
}

// junitResult says why, and shows the kernel's complaints in full.
func junitResult(o verdict.Outcome, reason string, found []klog.Splat, log []klog.Record) *junit.Result {
	var b strings.Builder
	b.WriteString(reason)
	b.WriteByte('\n')
	bad, allowed := splats(found, log)
	for _, s := range bad {
		fmt.Fprintf(&b, "\n%s: %s\n", s.Kind, s.Title)
		for i := range s.records {
			for _, line := range recordLines(&s.records[i]) {
				b.WriteString(line)
				b.WriteByte('\n')
			}
		}
		if s.Incomplete {
			b.WriteString("[the report is incomplete]\n")
		}
	}
	for _, s := range allowed {
		fmt.Fprintf(&b, "\nallowed: %s: %s: %s\n", s.Kind, s.Title, s.Allowed)
	}
	message, _, _ := strings.Cut(reason, "\n")
	return &junit.Result{Message: clean(message), Type: o.String(), Data: klog.EscapeLines(b.String())}
}

func junitLog(log []klog.Record) *junit.Output {
	var lines []string
	for i := range log {
		lines = append(lines, recordLines(&log[i])...)
	}
	if len(lines) == 0 {
		return nil
	}
	if cut := len(lines) - logLimit; cut > 0 {
		lines = append([]string{fmt.Sprintf("[%d earlier lines are in kernel.log]", cut)}, lines[cut:]...)
	}
	return &junit.Output{Data: klog.EscapeLines(strings.Join(lines, "\n") + "\n")}
}

// junitCell is the error of a cell that no test of it has already, or nil.
func junitCell(c *verdict.Cell) *junit.Testcase {
	bad, _ := splats(c.Splats, c.Log)
	covered := c.Outcome.Good() && len(c.Tests) > 0
	for i := range c.Tests {
		covered = covered || c.Tests[i].Outcome == c.Outcome
	}
	if covered && c.Failure == nil && len(bad) == 0 {
		return nil
	}
	reason := c.Reason
	switch {
	case c.Failure != nil:
		reason = c.Failure.Message
	case reason == "" && len(c.Tests) == 0:
		reason = "no test ran"
	}
	return &junit.Testcase{
		Name: "cell", Classname: clean(c.ID), Time: xmlSeconds(0), Status: c.Outcome.String(),
		Error: junitResult(c.Outcome, reason, c.Splats, c.Log), SystemErr: junitLog(c.Log),
	}
}

func xmlSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// clean makes text fit for an XML attribute: one line, no control character.
func clean(s string) string { return oneLine(s) }
