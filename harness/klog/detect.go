// SPDX-License-Identifier: MIT

package klog

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// Splat is one complaint of the kernel.
type Splat struct {
	// Kind is the name of the kind in kinds.yaml: "kasan", "null-deref".
	Kind string `json:"kind"`
	// Title names the splat without what differs from run to run: no
	// addresses, pids, CPU numbers, offsets, sizes or line numbers.
	Title string `json:"title"`
	// Line is the headline as the kernel printed it.
	Line string `json:"line"`
	// First and Last are the indexes of the report's first and last record.
	// Records of other callers may lie between: see Records.
	First int `json:"first"`
	Last  int `json:"last"`
	// Caller is who printed the report, "" when the log does not tell.
	Caller string `json:"caller,omitempty"`
	// Fatal says that the kernel died of it.
	Fatal bool `json:"fatal,omitempty"`
	// Incomplete says that the report was cut: its end, or something between,
	// is missing.
	Incomplete bool `json:"incomplete,omitempty"`
	// Allowed is the reason from the allow-list entry that covers it, or "".
	Allowed string `json:"allowed,omitempty"`
}

// Records returns the report's own records out of the whole log that the
// indexes refer to, without those that other callers printed, or user space
// wrote, meanwhile.
func (s Splat) Records(log []Record) []Record {
	var own []Record
	for i := max(s.First, 0); i <= s.Last && i < len(log); i++ {
		if log[i].Caller == s.Caller && log[i].Facility == 0 {
			own = append(own, log[i])
		}
	}
	return own
}

const (
	callTrace = "Call Trace:"
	cutHere   = "------------[ cut here ]------------"
	endTrace  = "---[ end trace"

	// maxReport bounds the records of a report whose end never comes, and
	// maxBare those after a headline that may stand alone.
	maxReport = 2000
	maxBare   = 25
	// maxLead bounds the lines from "cut here", or the rule, to the headline.
	maxLead = 25
	// maxPause is the longest time between two lines of one report: printing
	// never waits, so that what comes later is something else.
	maxPause = 10 * time.Second
)

// state is how far a report has got.
type state uint8

const (
	closed state = iota
	// inside: the end is still to come, every line of the caller belongs to it.
	inside
	// dumping: the last part has begun, lines that look like a dump belong to it.
	dumping
	// after: the end was seen, but an oops may print its registers once more.
	after
)

// report is a splat while it is being read.
type report struct {
	splat Splat
	kind  *kind
	title string // without the function
	in    string // the function, once known
	state state
	ended bool // the end that the kind prints was seen
	lines int
	last  time.Duration
	// traced: the call trace has begun; open: "<TASK>" without "</TASK>" yet.
	traced, open bool
	// byFrame: RIP names no function, so the trace must.
	byFrame bool
	// dying: the panic that it led to has been printed.
	dying bool
	head  int // record index of the headline
	gaps  int // of the detector, at the last line
	lost  bool
}

// stream is what one caller prints.
type stream struct {
	lead      int // record index of a pending "cut here" or rule, or -1
	leadLines int
	leadTime  time.Duration
	leadAfter int     // the last record of the report in which the lead stood
	report    *report // the latest, open or not
}

// Detector finds splats in a kernel log as it grows. Its zero value is not
// usable; use NewDetector. It is not safe for concurrent use.
type Detector struct {
	table   *table
	streams map[string]*stream
	active  int // streams with a lead or an open report
	reports []*report
	index   int
	seq     uint64
	haveSeq bool
	booted  bool
	gaps    int // how often messages were found missing
	latest  time.Duration
}

// NewDetector returns a detector that has seen nothing.
func NewDetector() *Detector { return newDetector(builtIn()) }

func newDetector(t *table) *Detector {
	return &Detector{table: t, streams: map[string]*stream{}}
}

// Detect finds the splats in a whole log, in the order of their headlines.
func Detect(log []Record) []Splat {
	d := NewDetector()
	for _, r := range log {
		d.Add(r)
	}
	return d.Splats()
}

// Splats returns what was found so far. A report that is still open counts as
// cut at this point.
func (d *Detector) Splats() []Splat {
	var splats []Splat
	for _, r := range d.reports {
		splats = append(splats, r.result())
	}
	return splats
}

// Add takes the next record; the first has index 0. It returns a splat and
// true as soon as a headline is seen, and once more when the kernel turns out
// to have died of it. Its title may become more precise, its Last and
// Incomplete change, as the report goes on: Splats has the final state.
//
// Records that user space wrote are counted but not looked at.
func (d *Detector) Add(r Record) (Splat, bool) {
	at := d.index
	d.index++
	if d.haveSeq && r.Seq > d.seq+1 {
		d.gaps++
	}
	if r.Seq != 0 || at == 0 {
		d.seq, d.haveSeq = r.Seq, true
	}
	if r.Facility != 0 {
		return Splat{}, false
	}
	var news *report
	text := r.Text
	for more, begun := true, !r.Cont; more; begun = true {
		var line string
		line, text, more = strings.Cut(text, `\x0a`)
		if n := d.line(at, &r, line, begun); n != nil {
			news = n
		}
	}
	d.latest = max(d.latest, r.Time)
	if news == nil {
		return Splat{}, false
	}
	return news.result(), true
}

// line takes one line of a record, or the rest of one when it was not begun
// here, and returns a report that it began or made fatal.
func (d *Detector) line(at int, r *Record, line string, begun bool) *report {
	var first byte
	if line != "" {
		first = line[0]
	}
	// Nearly every line of a log leaves here.
	if d.active == 0 && d.table.byFirst[first] == nil && first != '-' && first != '=' {
		return nil
	}
	if isDropped(line) {
		d.gaps++
		return nil
	}
	var kind *kind
	var groups map[string]string
	if begun {
		kind, groups = d.table.match(line)
	}
	if kind != nil && kind.First {
		return d.boot(at, r, kind, groups, line)
	}
	s := d.streams[r.Caller]
	isLead := line == cutHere || isRule(line)
	if s == nil {
		if kind == nil && !isLead {
			return nil
		}
		s = &stream{lead: -1}
		d.streams[r.Caller] = s
	}
	defer d.recount(s, s.busy())

	if p := s.report; p != nil && p.state != closed {
		before := p.splat.Last
		if took, news := p.take(d, at, r, kind, groups, line); took {
			if kind == nil && p.kind.Ends != endsRule {
				s.mark(at, r, isLead, before)
			}
			return news
		}
	}
	if kind == nil {
		s.mark(at, r, isLead, -1)
		return nil
	}
	if p := s.report; p != nil && kind.follows != nil && kind.follows.MatchString(groups["what"]) &&
		pause(p.last, r.Time) <= maxPause {
		p.die(at, r)
		return p
	}
	n := &report{
		kind: kind, title: kind.title(groups), state: inside, last: r.Time, head: at, gaps: d.gaps,
		splat: Splat{Kind: kind.Name, Line: line, First: at, Last: at, Caller: r.Caller, Fatal: kind.Fatal},
	}
	if s.lead >= 0 && pause(s.leadTime, r.Time) <= maxPause {
		n.splat.First = s.lead
		if s.report != nil && s.leadAfter >= 0 {
			s.report.splat.Last = s.leadAfter
		}
	}
	s.lead, s.report = -1, n
	if kind.Ends == endsLine {
		n.state, n.ended = closed, true
	}
	d.reports = append(d.reports, n)
	return n
}

// boot takes the banner that every kernel begins its log with.
func (d *Detector) boot(at int, r *Record, kind *kind, groups map[string]string, line string) *report {
	expected := !d.booted && d.latest == 0
	d.booted = true
	if expected {
		return nil
	}
	// Whatever the kernel before was saying, it has been cut short.
	for _, s := range d.streams {
		if s.report != nil {
			s.report.state = closed
		}
	}
	d.streams, d.active, d.latest, d.haveSeq = map[string]*stream{}, 0, 0, false
	n := &report{
		kind: kind, title: kind.title(groups), ended: true, head: at,
		splat: Splat{Kind: kind.Name, Line: line, First: at, Last: at, Caller: r.Caller, Fatal: kind.Fatal},
	}
	d.reports = append(d.reports, n)
	return n
}

func (s *stream) busy() bool {
	return s.lead >= 0 || (s.report != nil && s.report.state != closed)
}

func (d *Detector) recount(s *stream, was bool) {
	switch now := s.busy(); {
	case now && !was:
		d.active++
	case was && !now:
		d.active--
	}
}

// mark remembers a line that may be the beginning of a report. It may stand in
// one whose end never came, which then ended with the record after.
func (s *stream) mark(at int, r *Record, isLead bool, after int) {
	if isLead {
		s.lead, s.leadLines, s.leadTime, s.leadAfter = at, 0, r.Time, after
		return
	}
	if s.leadLines++; s.leadLines > maxLead {
		s.lead = -1
	}
}

// take offers a line to an open report. It says whether the line belongs to
// it, and returns the report when it became fatal.
func (p *report) take(d *Detector, at int, r *Record, kind *kind, groups map[string]string, line string) (bool, *report) {
	if pause(p.last, r.Time) > maxPause {
		p.close()
		return false, nil
	}
	switch {
	case kind == nil:
	case kind.Ends == endsPanic && kind.follows.MatchString(groups["what"]):
		wasFatal := p.splat.Fatal
		p.die(at, r)
		if wasFatal {
			return true, nil
		}
		return true, p
	case p.dying, p.kind.Ends == endsPanic, p.kind.Fatal && kind.Ends != endsPanic:
		// A dying kernel may stumble on its way; that is no news.
	case p.state == inside && !p.traced && slices.Contains(kind.Refines, p.kind.Name):
		p.kind, p.title = kind, kind.title(groups)
		p.splat.Kind, p.splat.Line = kind.Name, line
	case p.state == inside && slices.Contains(kind.Continues, p.kind.Name):
	default:
		p.close()
		return false, nil
	}

	ends := p.kind.Ends
	if p.dying {
		ends = endsPanic
	}
	switch p.state {
	case inside:
		p.lines++
		switch {
		case ends == endsTrace && strings.HasPrefix(line, endTrace),
			ends == endsRule && isRule(line):
			p.ended, p.open, p.state = true, false, after
		case ends == endsStack && strings.Contains(line, p.kind.After):
			p.ended, p.state = true, dumping
		case ends == endsPanic && (strings.HasPrefix(line, "---[ end Kernel panic") || strings.HasPrefix(line, "Rebooting in ")):
			p.state = closed
		case p.kind.Bare && !p.dying && p.lines > maxBare, p.lines > maxReport:
			p.close()
			return false, nil
		}
	case dumping, after:
		if !isDump(line) || (p.state == after && p.kind.Where != whereRIP) {
			p.state = closed
			return false, nil
		}
	}
	p.extend(at, r)
	p.lost = p.lost || p.gaps != d.gaps
	p.gaps = d.gaps
	p.locate(line, d.table)
	return true, nil
}

func (p *report) extend(at int, r *Record) {
	p.splat.Last, p.last = at, r.Time
}

// die makes the report the one that the kernel died of: from now on everything
// that this caller prints belongs to it.
func (p *report) die(at int, r *Record) {
	p.extend(at, r)
	p.splat.Fatal, p.dying, p.ended, p.open, p.state, p.lines = true, true, true, false, inside, 0
}

// close ends a report whose end may not have been seen.
func (p *report) close() {
	p.splat.Last = p.end()
	p.state = closed
}

// end is the last record: a headline that may stand alone, and after which
// nothing came that makes it a report, is all there is.
func (p *report) end() int {
	if p.kind.Bare && !p.ended {
		return p.head
	}
	return p.splat.Last
}

// result is the splat as things stand.
func (p *report) result() Splat {
	s := p.splat
	s.Title = p.title
	if p.in != "" {
		s.Title += " in " + p.in
	}
	s.Last = p.end()
	s.Incomplete = p.open || p.lost || !(p.ended || p.kind.Bare || p.kind.Ends == endsPanic)
	return s
}

var (
	ripLine   = regexp.MustCompile(`^RIP: 00(?:10|08|60|18):(\S+)`)
	lockLine  = regexp.MustCompile(`(?:\bat: |^\[<[0-9a-fpx()]+>\] )([A-Za-z_][\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+)`)
	frameLine = regexp.MustCompile(`^ ([A-Za-z_][\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+)`)
)

// locate looks for the function that the title names, and for the call trace.
func (p *report) locate(line string, t *table) {
	switch {
	case strings.HasPrefix(line, callTrace):
		p.traced = true
	case line == " <TASK>" || line == " <IRQ>":
		p.open = true
	case line == " </TASK>" || line == " </IRQ>":
		p.open = false
	}
	if p.in != "" {
		return
	}
	var m []string
	switch {
	case p.kind.Where == whereFrame || p.byFrame:
		if !p.traced {
			return
		}
		m = frameLine.FindStringSubmatch(line)
		if m != nil && t.helpers.MatchString(cleanFunc(m[1])) {
			return
		}
	case p.kind.Where == whereRIP && strings.HasPrefix(line, "RIP: "):
		m = ripLine.FindStringSubmatch(line)
		if m != nil && !symbol.MatchString(m[1]) {
			p.byFrame = true
			return
		}
	case p.kind.Where == whereLock:
		m = lockLine.FindStringSubmatch(line)
	}
	if m != nil {
		p.in = cleanFunc(m[1])
	}
}

// pause is the time from one line to the next; 0 when either is unknown.
func pause(from, to time.Duration) time.Duration {
	if from == 0 || to == 0 {
		return 0
	}
	return to - from
}

// isRule says whether the line is one of those "=====" that reports are framed
// with.
func isRule(line string) bool {
	return len(line) >= 20 && strings.Trim(line, "=") == ""
}

// dumps are the beginnings of the lines that make up a dump of a CPU or a task
// (show_regs, dump_stack, sched_show_task, show_all_workqueues, and RCU's
// state), as far as they are not indented.
var dumps = []string{
	"Call Trace:", "CPU: ", "Tainted: ", "Hardware name: ", "Workqueue: ", "Stopper: ", "Modules linked in:",
	"RIP: ", "Code: ", "RSP: ", "RAX: ", "RDX: ", "RBP: ", "R10: ", "R13: ", "FS: ", "CS: ", "CR2: ", "DR0: ", "DR3: ",
	"PKRU: ", "ORIG_RAX: ", "irq event stamp: ", "hardirqs last ", "softirqs last ", "task:", "NMI backtrace for cpu ",
	"Sending NMI from CPU ", "rcu: \\x09", "rcu: rcu_", "rcu: RCU ", "rcu: Stack dump ", "rcu: All QSes", "rcu: INFO: Stall ended",
	"workqueue ", "pool ", "Showing backtraces of ", "Preemption disabled at:",
}

func isDump(line string) bool {
	if line == "" {
		return false
	}
	if line[0] == ' ' || strings.HasPrefix(line, `\x09`) {
		return true
	}
	for _, d := range dumps {
		if strings.HasPrefix(line, d) {
			return true
		}
	}
	return false
}
