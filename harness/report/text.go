// SPDX-License-Identifier: MIT

package report

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// TextOptions says for whom WriteText writes.
type TextOptions struct {
	// Color permits colours.
	Color bool
	// Width is where prose is wrapped, in columns; 0 means 80. What a program,
	// a compiler or the kernel said keeps its lines.
	Width int
	// Verbose shows the output of tests that passed, too.
	Verbose bool
}

// What a report for people shows of something long, in lines. The rest is said
// to be where it is.
const (
	maxOutput = 40
	maxLead   = 16
	maxTrace  = 25
	maxRecent = 12
)

// WriteText writes the report for people: what went wrong, every test, the
// time it took, and the verdict in the last line.
func WriteText(w io.Writer, run *verdict.Run, options TextOptions) error {
	if options.Width <= 0 {
		options.Width = 80
	}
	t := &text{w: bufio.NewWriter(w), paint: paint(options.Color), TextOptions: options}
	for i := range run.Cells {
		if len(run.Cells) > 1 {
			t.line(0, t.bold("=== "+short(run.Cells[i].ID)+" ==="))
		}
		t.cell(&run.Cells[i])
		if len(run.Cells) > 1 && len(run.Cells[i].Phases) > 0 {
			t.line(0, "")
		}
	}
	for i := range run.Cells {
		t.verdict(run, &run.Cells[i])
	}
	if len(run.Cells) == 0 || run.ExitCode != run.Exit() {
		t.line(0, t.bad(fmt.Sprintf("exit code %d", run.ExitCode))+": "+exitMeaning(run.ExitCode))
	}
	return t.w.Flush()
}

// exitMeaning says what an exit code means.
func exitMeaning(code int) string {
	switch code {
	case fault.ExitOK:
		return "all as expected"
	case fault.ExitFailed:
		return "something under test failed"
	case fault.ExitConfiguration:
		return "usage or configuration"
	case fault.ExitBuild:
		return "something does not apply or does not compile"
	default:
		return "the harness or the host failed, or the run was interrupted"
	}
}

// paint adds colour, or does not.
type paint bool

func (p paint) color(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p paint) bad(s string) string  { return p.color("1;31", s) }
func (p paint) bold(s string) string { return p.color("1", s) }
func (p paint) dim(s string) string  { return p.color("2", s) }

// as colours s as the outcome deserves.
func (p paint) as(o verdict.Outcome, s string) string {
	switch {
	case o == verdict.Pass:
		return p.color("32", s)
	case o == verdict.Skip:
		return p.color("33", s)
	default:
		return p.bad(s)
	}
}

// text is a report being written. The first error of w sticks to its buffer.
type text struct {
	w *bufio.Writer
	paint
	TextOptions
}

func (t *text) line(indent int, s string) {
	fmt.Fprintf(t.w, "%*s%s\n", indent, "", s)
}

// prose writes sentences, wrapped. A word that is too long is not cut.
func (t *text) prose(indent int, s string) {
	for _, line := range safeLines(s) {
		var b strings.Builder
		for _, word := range strings.Fields(line) {
			if b.Len() > 0 && indent+columns(b.String())+1+columns(word) > t.Width {
				t.line(indent, b.String())
				b.Reset()
			}
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(word)
		}
		if b.Len() > 0 {
			t.line(indent, b.String())
		}
	}
}

// quoted writes what somebody else said, line by line.
func (t *text) quoted(indent int, lines []string) {
	for _, line := range lines {
		if line == "" {
			t.line(0, "")
		} else {
			t.line(indent, line)
		}
	}
}

func (t *text) cell(c *verdict.Cell) {
	t.whole(c)
	for i := range c.Tests {
		if one := &c.Tests[i]; !one.Outcome.Good() && one.Outcome != verdict.NotRun {
			t.failing(one)
		}
	}
	t.notRun(c)
	if len(c.Trouble) > 0 {
		t.line(0, t.bold("Trouble that did not end the run:"))
		for _, s := range c.Trouble {
			t.limited(2, safeLines(s), "results.json")
		}
		t.line(0, "")
	}
	if len(c.Tests) > 0 {
		t.table(c)
	}
	t.phases(c)
}

// whole shows what is wrong with the cell and is no test's.
func (t *text) whole(c *verdict.Cell) {
	bad, allowed := splats(c.Splats, c.Log)
	name := short(c.ID)
	switch {
	case c.Failure != nil:
		t.head(c.Outcome, name, "")
		t.limited(2, safeLines(c.Failure.Message), "results.json")
		t.line(2, fmt.Sprintf("blamed on: the %s", c.Failure.Blame))
		t.line(0, "")
	case len(bad) > 0 || c.Outcome == verdict.Boot || ownReason(c):
		where := "outside any test"
		if c.Outcome == verdict.Boot {
			where = ""
		}
		t.head(c.Outcome, name, where)
		t.reason(c.Reason, bad)
		t.splats(bad)
		if len(bad) == 0 || c.Outcome == verdict.Boot {
			t.recent(c.Log, c.Splats)
		}
		t.line(0, "")
	}
	if len(allowed) > 0 {
		t.line(0, t.bold("Known splats outside any test:"))
		t.allowed(2, allowed)
		t.line(0, "")
	}
}

// ownReason reports whether the cell's outcome is no test's.
func ownReason(c *verdict.Cell) bool {
	if c.Outcome.Good() {
		return false
	}
	return !slices.ContainsFunc(c.Tests, func(t verdict.Test) bool { return t.Outcome == c.Outcome })
}

func (t *text) head(o verdict.Outcome, name, more string) {
	s := t.as(o, strings.ToUpper(o.String())) + " " + t.bold(name)
	if more != "" {
		s += "  (" + more + ")"
	}
	t.line(0, s)
}

// failing shows all that matters about a test that is not good.
func (t *text) failing(one *verdict.Test) {
	bad, allowed := splats(one.Splats, one.Log)
	t.head(one.Outcome, fullName(one), took(one))
	t.reason(one.Reason, bad)
	if output := dedent(safeLines(one.Output)); len(output) > 0 && !saysNothingNew(output, one.Reason) {
		t.line(2, "output:")
		t.output(output)
	}
	t.splats(bad)
	t.recent(one.Log, one.Splats)
	if len(allowed) > 0 {
		t.line(2, "known splats:")
		t.allowed(4, allowed)
	}
	t.line(0, "")
}

// reason shows why, unless a splat that follows has the same title.
func (t *text) reason(reason string, bad []splat) {
	if !slices.ContainsFunc(bad, func(s splat) bool { return s.Title == reason }) {
		t.prose(2, reason)
	}
}

// took is how long a test took, or "" if nobody knows.
func took(one *verdict.Test) string {
	if one.Duration == 0 && !one.Outcome.Good() {
		return ""
	}
	return seconds(one.Duration)
}

// dedent takes away what all lines are indented by.
func dedent(lines []string) []string {
	common := -1
	for _, line := range lines {
		if rest := strings.TrimLeft(line, " "); rest != "" {
			if n := len(line) - len(rest); common < 0 || n < common {
				common = n
			}
		}
	}
	var out []string
	for _, line := range lines {
		out = append(out, line[min(len(line), max(common, 0)):])
	}
	return out
}

// saysNothingNew reports whether the output is the reason.
func saysNothingNew(output []string, reason string) bool {
	return len(output) == 1 && strings.TrimSpace(output[0]) == strings.TrimSpace(short(reason))
}

// output shows the end of a test's output, or, if the program panicked, what
// begins there.
func (t *text) output(lines []string) {
	from := slices.IndexFunc(lines, func(s string) bool {
		return strings.HasPrefix(s, "panic: ") || strings.HasPrefix(s, "fatal error: ")
	})
	if from < 0 {
		from = max(0, len(lines)-maxOutput)
	}
	if from > 0 {
		t.cut(4, from, "earlier line", "results.json")
	}
	t.limited(4, lines[from:], "results.json")
}

// limited shows the first lines and says how many more there are.
func (t *text) limited(indent int, lines []string, where string) {
	n := min(len(lines), maxOutput)
	t.quoted(indent, lines[:n])
	if n < len(lines) {
		t.cut(indent, len(lines)-n, "more line", where)
	}
}

func (t *text) cut(indent, n int, what, where string) {
	verb := "are"
	if n == 1 {
		verb = "is"
	}
	t.line(indent, t.dim(fmt.Sprintf("[%s %s in %s]", count(n, what), verb, where)))
}

func (t *text) splats(all []splat) {
	for _, s := range all {
		t.line(2, fmt.Sprintf("%s %s", t.bad("splat:"), short(s.Title)))
		shown, total := trim(s.records)
		t.quoted(4, shown)
		if rest := total - len(shown); rest > 0 {
			t.cut(4, rest, "more line", "kernel.log")
		}
		if s.Incomplete {
			t.line(4, t.dim("[the report is incomplete: the kernel did not get further]"))
		}
	}
}

// noise is what tells a reader nothing before he opens the whole log.
var noise = regexp.MustCompile(`^(R[A-Z0-9][A-Z0-9]?: |[CDEFGS]S: |[CD]R\d: |PKRU: |PGD |Code: |Hardware name: |Modules linked in:|-+\[|Kernel Offset|Rebooting in|[=-]+$|\s*$)`)

// sections begin the parts of a report that consist of frames.
var sections = regexp.MustCompile(`^(Call [Tt]race:|Allocated by task|Freed by task|Last potentially related work creation:)`)

// trim picks the lines of a report that matter: its head, the call trace, for a
// use after free who allocated and freed, and the panic that ends it. total is
// how many lines there are.
func trim(records []klog.Record) (shown []string, total int) {
	lead, frames, before, inside := 0, 0, true, false
	for i := range records {
		for _, line := range textLines(&records[i]) {
			total++
			keep := false
			switch {
			case strings.HasPrefix(line, "Kernel panic - "):
				keep = true
			case sections.MatchString(line):
				before, inside = false, frames < maxTrace
				keep = inside
			case before:
				keep = lead < maxLead && (strings.HasPrefix(line, "RIP: ") || !noise.MatchString(line))
				if keep {
					lead++
				}
			case inside:
				inside = strings.HasPrefix(line, " ") && strings.TrimSpace(line) != ""
				if keep = inside && frames < maxTrace; keep {
					frames++
				}
			}
			if keep {
				shown = append(shown, cutLine(line, longLine))
			}
		}
	}
	return shown, total
}

// recent shows the last records that are neither markers nor in a report.
func (t *text) recent(log []klog.Record, found []klog.Splat) {
	var lines []string
	for i := range log {
		in := func(s klog.Splat) bool { return s.First <= i && i <= s.Last }
		if _, _, _, marker := verdict.Marker(&log[i]); marker || slices.ContainsFunc(found, in) {
			continue
		}
		for _, line := range recordLines(&log[i]) {
			lines = append(lines, cutLine(line, longLine))
		}
	}
	if len(lines) == 0 {
		return
	}
	t.line(2, "kernel log:")
	if rest := len(lines) - maxRecent; rest > 0 {
		t.cut(4, rest, "earlier line", "kernel.log")
		lines = lines[rest:]
	}
	t.quoted(4, lines)
}

func (t *text) allowed(indent int, all []splat) {
	for _, s := range all {
		t.line(indent, short(s.Title))
		t.prose(indent+2, "known: "+s.Allowed)
	}
}

// notRun lists the tests that never started by reason: one cause usually took
// many of them.
func (t *text) notRun(c *verdict.Cell) {
	var reasons []string
	names := map[string][]string{}
	for i := range c.Tests {
		one := &c.Tests[i]
		if one.Outcome != verdict.NotRun {
			continue
		}
		if names[one.Reason] == nil {
			reasons = append(reasons, one.Reason)
		}
		names[one.Reason] = append(names[one.Reason], fullName(one))
	}
	for _, reason := range reasons {
		t.head(verdict.NotRun, count(len(names[reason]), "test"), "")
		t.prose(2, reason)
		t.quoted(4, names[reason])
		t.line(0, "")
	}
}

func (t *text) table(c *verdict.Cell) {
	t.line(0, t.bold(fmt.Sprintf("%-8s %9s  %6s  %s", "outcome", "time", "splats", "test")))
	for _, suite := range suitesOf(c) {
		t.line(tableIndent, t.bold(short(suite)))
		parent := ""
		for i := range c.Tests {
			one := &c.Tests[i]
			if one.Suite != suite {
				continue
			}
			// Sub-tests stand below their parent, which has no row of its own
			// when it has nothing of its own to say.
			name, above := one.Name, verdict.Parent(one.Name)
			if above != "" {
				name = name[len(above)+1:]
			}
			if above != "" && above != parent {
				t.line(tableIndent+2, short(above))
			}
			parent = above
			if above == "" {
				parent = one.Name
			}
			t.row(one, name, above != "")
		}
	}
	t.line(0, "")
}

// tableIndent is the column of the names.
const tableIndent = 27

func (t *text) row(one *verdict.Test, name string, sub bool) {
	indent := 2
	if sub {
		indent = 4
	}
	complaints := ""
	if n := len(one.Splats); n > 0 {
		complaints = fmt.Sprint(n)
	}
	word := fmt.Sprintf("%-8s", one.Outcome)
	name = short(name)
	if !one.Outcome.Good() {
		word, name = fmt.Sprintf("%-8s", strings.ToUpper(one.Outcome.String())), t.bad(name)
	}
	t.line(0, fmt.Sprintf("%s %9s  %6s  %*s%s", t.as(one.Outcome, word), took(one), complaints, indent, "", name))
	indent += tableIndent + 2
	if one.Outcome == verdict.Skip {
		t.prose(indent, one.Reason)
	}
	if one.Outcome.Good() {
		bad, allowed := splats(one.Splats, one.Log)
		t.allowed(indent, append(bad, allowed...))
	}
	if t.Verbose && one.Outcome.Good() && one.Output != "" {
		t.quoted(4, dedent(safeLines(one.Output)))
	}
}

func (t *text) phases(c *verdict.Cell) {
	if len(c.Phases) == 0 {
		return
	}
	var parts []string
	for _, p := range c.Phases {
		s := short(p.Name) + " " + seconds(p.Duration)
		if p.Cached {
			s += " (cached)"
		}
		parts = append(parts, s)
	}
	t.prose(0, "phases: "+strings.Join(parts, ", "))
}

// done names the outcomes as what became of tests.
var done = map[verdict.Outcome]string{
	verdict.Pass: "passed", verdict.Skip: "skipped", verdict.NotRun: "not run", verdict.Fail: "failed",
	verdict.Splat: "with splats", verdict.Timeout: "timed out", verdict.Lost: "lost", verdict.Crash: "crashed",
}

func (t *text) verdict(run *verdict.Run, c *verdict.Cell) {
	tests := map[verdict.Outcome]int{}
	for i := range c.Tests {
		tests[c.Tests[i].Outcome]++
	}
	var parts []string
	for _, o := range verdict.Outcomes() {
		if n := tests[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, done[o]))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no test ran"}
	}
	duration := run.Duration
	if len(run.Cells) > 1 {
		duration = 0
		for _, p := range c.Phases {
			duration += p.Duration
		}
	}
	total := ""
	if duration > 0 {
		total = " in " + seconds(duration)
	}
	var about []string
	if c.Kernel != "" {
		about = append(about, "kernel "+short(c.Kernel))
	}
	if c.Accel != "" {
		about = append(about, strings.ToUpper(short(c.Accel)))
	}
	about = append(about, count(c.CPUs, "CPU"))
	t.line(0, fmt.Sprintf("%s %s: %s%s (%s)", t.as(c.Outcome, strings.ToUpper(c.Outcome.String())), short(c.ID),
		strings.Join(parts, ", "), total, strings.Join(about, ", ")))
}
