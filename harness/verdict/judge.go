// SPDX-License-Identifier: MIT

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"patchbay/harness/klog"
)

// Judge turns a cell's events into outcomes. It fills the cell's Outcome,
// Reason, Kernel, Boots, Tests, Log, Splats, KernelLog and Trouble and leaves
// the rest.
// allow holds the known splats; nil means none is known.
//
// The rules, in one place:
//
//   - A test passes only if its end was reported, the kernel had nothing to
//     complain about meanwhile, and the stream that says so is complete.
//   - The kernel's death while a test ran is that test's crash. A deadline is
//     its timeout. A guest that went away without a word is lost.
//   - A program that died or printed nothing about a test that it began fails
//     that test; tests it never began did not run.
//   - A splat outside any test is the cell's.
//   - A cell is as bad as the worst that happened in it, and no cell without
//     a passed or skipped test is good.
func Judge(c *Cell, plan []Suite, events []Event, allow *klog.AllowList) {
	j := &judge{
		cell: c, allow: allow, tests: map[key]*state{},
		outside: map[string]*text{}, exits: map[string]exit{},
	}
	for _, s := range plan {
		for _, name := range s.Tests {
			j.get(s.Name, name).planned = true
		}
	}
	for i := range events {
		j.event(&events[i])
	}
	j.endBoot()
	j.conclude()
}

type key struct{ suite, name string }

// state is what is known of one test.
type state struct {
	Test
	planned, started bool
	// ended is the number of the guest that reported its end, or 0.
	ended  int
	result Outcome
	output text
	begin  time.Time
	// why and reason are about a test that began in a guest and did not end
	// there. A parent runs again in the next guest, for the sub-tests left.
	why    Outcome
	reason string
}

type judge struct {
	cell  *Cell
	allow *klog.AllowList
	tests map[key]*state
	order []*state
	// outside holds what suites printed outside of any test, exits how the
	// programs ended that did not end well.
	outside map[string]*text
	exits   map[string]exit
	present
}

// exit is the bad end of a test program: Fail, or Timeout if the harness had
// to end it.
type exit struct {
	outcome Outcome
	reason  string
}

// present is what is known of the guest that the events are about.
type present struct {
	boot, hello, done, cancelled bool
	// records are the kernel's, owners the tests they belong to, or nil.
	records []klog.Record
	owners  []*state
	// active are the tests that the markers say are on, running those that
	// the test program says are.
	active, running []*state
	// at is when the guest was started: an entry of the allow list that
	// expires does so by this clock, also when judged again later.
	at time.Time
	// ending is the first reason why the stream did not end well.
	ending  string
	endKind Kind
	nextSeq uint64
	lost    uint64
}

func (j *judge) get(suite, name string) *state {
	k := key{suite, name}
	s := j.tests[k]
	if s == nil {
		s = &state{Test: Test{Suite: suite, Name: name}}
		j.tests[k] = s
		j.order = append(j.order, s)
	}
	return s
}

func (j *judge) event(e *Event) {
	switch e.Kind {
	case Launch:
		j.endBoot()
		j.boot, j.at = true, e.At
		j.cell.Boots++
	case Hello:
		j.hello = true
		j.cell.Kernel = e.Text
	case TestStart:
		s := j.get(e.Suite, e.Test)
		s.begin = e.At
		j.start(s)
	case TestEnd:
		s := j.get(e.Suite, e.Test)
		if !s.started {
			j.trouble(fmt.Sprintf("%s/%s ended without a start", e.Suite, e.Test))
		}
		if s.ended > 0 && s.ended == j.cell.Boots {
			// Only one report is the test's own; believe the worse.
			j.trouble(fmt.Sprintf("%s/%s ended twice", e.Suite, e.Test))
		}
		took := e.Elapsed
		if took == 0 {
			// The testing package rounds to 10 ms; the host's clock is finer.
			took = e.At.Sub(s.begin)
		}
		s.ended, s.result, s.Duration = j.cell.Boots, max(s.result, e.Outcome), s.Duration+took
		j.running = slices.DeleteFunc(j.running, func(r *state) bool { return r == s })
	case Output:
		j.output(e)
	case Kmsg:
		j.record(e.Record, true)
	case Console:
		j.record(e.Record, false)
	case Exited:
		j.exited(e)
	case Done:
		j.done = true
	case Trouble:
		j.trouble(e.Text)
	case Deadline, Cancelled, Broken, Gone:
		// The first reason is the cause; what follows are its consequences.
		if j.ending == "" {
			j.ending, j.endKind = e.Text, e.Kind
		}
		if e.Kind == Cancelled {
			j.cancelled = true
		}
	}
}

func (j *judge) trouble(text string) { j.cell.Trouble = append(j.cell.Trouble, text) }

// output goes to the test that printed it; a report about a test that has
// ended, and all else, to its suite.
func (j *judge) output(e *Event) {
	if e.Test != "" {
		j.get(e.Suite, e.Test).output.add(e.Text)
		return
	}
	if j.outside[e.Suite] == nil {
		j.outside[e.Suite] = &text{}
	}
	j.outside[e.Suite].add(e.Text)
}

// text collects output up to outputLimit and counts the rest.
type text struct {
	kept strings.Builder
	rest int
}

// outputLimit bounds what a report keeps of one test's output, in bytes. All of
// it is in the run's events.
const outputLimit = 256 << 10

func (t *text) add(s string) {
	keep := min(len(s), outputLimit-t.kept.Len())
	t.kept.WriteString(s[:keep])
	t.rest += len(s) - keep
}

func (t *text) String() string {
	if t.rest == 0 {
		return t.kept.String()
	}
	return fmt.Sprintf("%s\n[%d more bytes are in events.jsonl]\n", t.kept.String(), t.rest)
}

// start notes that a test began. The test program and the marker in the log
// both say so, and a guest that dies may get out only one of them.
func (j *judge) start(s *state) {
	s.started = true
	if s.ended != j.cell.Boots && !slices.Contains(j.running, s) {
		j.running = append(j.running, s)
	}
}

// record attributes one kernel log record by the markers in the log itself.
func (j *judge) record(r *klog.Record, numbered bool) {
	if r == nil {
		return
	}
	if numbered {
		// The kernel numbers its records from 0 and without gaps.
		if r.Seq > j.nextSeq {
			j.lost += r.Seq - j.nextSeq
		}
		j.nextSeq = r.Seq + 1
	}
	if verb, suite, test, ok := Marker(r); ok {
		switch verb {
		case "start":
			s := j.get(suite, test)
			j.start(s)
			j.active = append(j.active, s)
		case "end":
			s := j.get(suite, test)
			j.active = slices.DeleteFunc(j.active, func(a *state) bool { return a == s })
			j.keep(r, s)
			return
		case "run", "exit":
			j.active = nil
		}
	}
	var owner *state
	if n := len(j.active); n > 0 {
		owner = j.active[n-1]
	}
	j.keep(r, owner)
}

func (j *judge) keep(r *klog.Record, owner *state) {
	j.records = append(j.records, *r)
	j.owners = append(j.owners, owner)
}

// Marker splits a record that the agent or a suite wrote to frame a test: verb
// is start, end, run or exit; test is empty with the last two.
func Marker(r *klog.Record) (verb, suite, test string, ok bool) {
	text, ok := strings.CutPrefix(r.Text, "patchbay: ")
	if !ok || r.Facility == 0 {
		return "", "", "", false
	}
	verb, name, _ := strings.Cut(text, " ")
	suite, test, named := strings.Cut(name, "/")
	switch verb {
	case "start", "end":
		return verb, suite, test, named
	case "run", "exit":
		return verb, suite, "", true
	default:
		return "", "", "", false
	}
}

// exited closes what the program of a suite left open.
func (j *judge) exited(e *Event) {
	text := e.Text
	if text == "" {
		text = "exit status 0"
	}
	end := exit{Fail, text}
	if j.endKind == Deadline {
		// The program was ended, the guest goes on.
		end = exit{Timeout, j.ending}
		j.ending, j.endKind = "", ""
	}
	if e.Failed {
		j.exits[e.Suite] = end
	}
	for _, s := range j.running {
		if s.why != 0 {
			continue
		}
		s.why, s.reason = end.outcome, end.reason
		if end.outcome == Fail {
			s.reason = "the test program ended in the middle of it: " + end.reason
		}
	}
	j.running = nil
}

// endBoot settles what one guest's events mean.
func (j *judge) endBoot() {
	if !j.boot {
		return
	}
	died := j.splats()
	if j.lost > 0 {
		j.trouble(fmt.Sprintf("%d kernel log records were overwritten before they could be read", j.lost))
		j.worse(Lost, "the kernel log has gaps: a splat may have gone unseen")
	}
	j.unfinished(died)
	switch {
	case !j.hello && j.cancelled:
		j.worse(NotRun, j.ending)
	case !j.hello:
		reason := "no answer from the guest: " + j.ending
		if died != nil {
			reason = died.Title
		}
		j.worse(Boot, reason)
	case died != nil:
		j.worse(Crash, died.Title)
	case j.done:
	case j.cancelled:
		j.worse(NotRun, j.ending)
	case j.endKind == Deadline:
		j.worse(Timeout, j.ending)
	default:
		j.worse(Lost, "the stream from the guest is incomplete: "+j.ending)
	}
	j.present = present{}
}

// splats finds the kernel's complaints of this boot, hands records and
// complaints to the tests that they belong to, and returns the one that the
// kernel died of, if it did.
func (j *judge) splats() *klog.Splat {
	place := make([]int, len(j.records))
	lines := make([]LogLine, len(j.records))
	for i, r := range j.records {
		log := &j.cell.Log
		lines[i] = LogLine{Record: r, Boot: j.cell.Boots}
		if o := j.owners[i]; o != nil {
			log = &o.Log
			lines[i].Suite, lines[i].Test = o.Suite, o.Name
		}
		place[i] = len(*log)
		*log = append(*log, r)
	}
	found := klog.Detect(j.records)
	klog.Allow(j.allow, found, j.cell.Kernel, j.at)
	var died *klog.Splat
	for _, sp := range found {
		owner := j.owners[sp.First]
		lines[sp.First].Splats = append(lines[sp.First].Splats, sp)
		if sp.Fatal && died == nil {
			died = &sp
			if owner != nil && owner.ended != j.cell.Boots {
				owner.why, owner.reason = Crash, sp.Title
			}
		}
		last := sp.First
		for i := sp.First; i <= sp.Last && i < len(j.owners); i++ {
			if j.owners[i] == owner {
				last = i
			}
		}
		sp.First, sp.Last = place[sp.First], place[last]
		if owner == nil {
			j.cell.Splats = append(j.cell.Splats, sp)
		} else {
			owner.Splats = append(owner.Splats, sp)
		}
	}
	j.cell.KernelLog = append(j.cell.KernelLog, lines...)
	return died
}

// unfinished says of each test that began and did not end what became of it.
func (j *judge) unfinished(died *klog.Splat) {
	for _, s := range j.running {
		inLog := slices.Contains(j.active, s)
		switch {
		case s.why != 0:
		case died != nil && (inLog || len(j.active) == 0):
			s.why, s.reason = Crash, died.Title
		case died != nil:
			s.why, s.reason = Lost, "its result was lost when the kernel died: "+died.Title
		case j.endKind == Deadline:
			s.why, s.reason = Timeout, j.ending
		case j.cancelled:
			s.why, s.reason = NotRun, j.ending
		default:
			s.why, s.reason = Lost, "the guest went away: "+j.ending
		}
	}
}

// worse lets the cell be at least as bad as o.
func (j *judge) worse(o Outcome, reason string) {
	if o > j.cell.Outcome {
		j.cell.Outcome, j.cell.Reason = o, reason
	}
}

// conclude gives each test its outcome and the cell the worst of them.
func (j *judge) conclude() {
	parents := j.parents()
	good := 0
	badSuites := map[string]bool{}
	for _, s := range j.order {
		j.outcome(s)
		if !s.Outcome.Good() {
			badSuites[s.Suite] = true
		}
	}
	for _, s := range j.order {
		if parents[key{s.Suite, s.Name}] && !s.planned && j.redundant(s) {
			continue
		}
		j.cell.Tests = append(j.cell.Tests, s.Test)
		if s.Outcome.Good() {
			good++
			continue
		}
		j.worse(s.Outcome, fmt.Sprintf("%s/%s: %s", s.Suite, s.Name, firstLine(s.Reason)))
	}
	for _, sp := range j.cell.Splats {
		if sp.Allowed == "" {
			j.worse(Splat, "outside any test: "+sp.Title)
		}
	}
	for _, suite := range slices.Sorted(maps.Keys(j.exits)) {
		if end := j.exits[suite]; !badSuites[suite] {
			reason := fmt.Sprintf("%s: its tests passed, yet the program failed: %s", suite, end.reason)
			if out := j.outside[suite]; out != nil {
				j.trouble(reason + "\n" + out.String())
			}
			j.worse(end.outcome, reason)
		}
	}
	if good == 0 {
		j.worse(NotRun, "no test ran")
	}
	j.worse(Pass, "")
}

// outcome applies the rules to one test.
func (j *judge) outcome(s *state) {
	s.Output = s.output.String()
	switch {
	case s.ended > 0 && s.result >= s.why:
		s.Outcome = s.result
		if s.result != Pass {
			s.Reason = said(s.Output)
		}
	case s.why != 0:
		s.Outcome, s.Reason = s.why, s.reason
	case s.started:
		s.Outcome, s.Reason = Lost, "its end was never reported"
	case j.exits[s.Suite].reason != "":
		s.Outcome, s.Reason = NotRun, "its program did not get to it: "+j.exits[s.Suite].reason
	default:
		s.Outcome, s.Reason = NotRun, "it was planned and never started"
	}
	for _, sp := range s.Splats {
		switch {
		case sp.Allowed != "":
		case sp.Fatal && s.Outcome < Crash:
			s.Outcome, s.Reason = Crash, sp.Title
		case s.Outcome < Splat:
			s.Outcome, s.Reason = Splat, sp.Title
		}
	}
}

// parents lists the tests that have sub-tests.
func (j *judge) parents() map[key]bool {
	found := map[key]bool{}
	for k := range j.tests {
		for at := strings.LastIndexByte(k.name, '/'); at > 0; at = strings.LastIndexByte(k.name[:at], '/') {
			found[key{k.suite, k.name[:at]}] = true
		}
	}
	return found
}

// redundant reports whether a parent only repeats what its sub-tests say.
func (j *judge) redundant(parent *state) bool {
	if len(parent.Splats) > 0 {
		return false
	}
	bad := false
	for k, s := range j.tests {
		if k.suite == parent.Suite && strings.HasPrefix(k.name, parent.Name+"/") && !s.Outcome.Good() {
			bad = true
		}
	}
	return parent.Outcome.Good() || bad
}

// said picks from a test's output the line that explains its result: the last
// that t.Error, t.Fatal or t.Skip wrote, which begins with file:line.
func said(output string) string {
	var last, explained string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		last = line
		if file, rest, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(file, ".go") && rest != "" {
			explained = line
		}
	}
	switch {
	case explained != "":
		return explained
	case last != "":
		return last
	default:
		return "it gave no reason"
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
