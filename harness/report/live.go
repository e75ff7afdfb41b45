// SPDX-License-Identifier: MIT

package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/text/width"

	"patchbay/harness/internal/progress"
	"patchbay/harness/verdict"
)

// LiveOptions says what Live writes to.
type LiveOptions struct {
	// Terminal permits a status line that is rewritten in place.
	Terminal bool
	// Width of the terminal, in columns; 0 means 80.
	Width int
	// Color permits colours.
	Color bool
}

const (
	// redraw is how often the status line is drawn anew.
	redraw = 200 * time.Millisecond
	// quiet is the least time between two lines of progress where there is no
	// terminal.
	quiet = 30 * time.Second
)

// Live shows a run while it goes on. Its methods may be called concurrently and
// never wait for the reader: a terminal that somebody stopped must not make
// tests miss their deadlines. It changes no mode of the terminal, so that there
// is nothing to restore after a kill.
type Live struct {
	w       io.Writer
	options LiveOptions
	paint
	now   func() time.Time
	begin time.Time

	wake, stop, done chan struct{}
	closing          sync.Once

	mu       sync.Mutex
	lines    []string
	steps    []*step
	reported time.Time
	// suite and test are what runs in the guest since when.
	suite, test string
	since       time.Time
	// parents has the tests with sub-tests, and the worst that one of these
	// came to.
	parents map[string]verdict.Outcome
}

// step is work that was started and has not ended.
type step struct {
	progress.Event
	begin time.Time
}

// NewLive starts to show on w. Call Close before anything else writes there.
func NewLive(w io.Writer, options LiveOptions) *Live {
	ticker := time.NewTicker(redraw)
	l := newLive(w, options, time.Now, ticker.C)
	go func() {
		<-l.done
		ticker.Stop()
	}()
	return l
}

func newLive(w io.Writer, options LiveOptions, now func() time.Time, ticks <-chan time.Time) *Live {
	if options.Width <= 0 {
		options.Width = 80
	}
	if !options.Terminal {
		ticks = nil
	}
	l := &Live{
		w: w, options: options, paint: paint(options.Color), now: now, begin: now(),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		parents: map[string]verdict.Outcome{},
	}
	go l.show(ticks)
	return l
}

// Close writes what is left, takes the status line away and stops. It may be
// called more than once.
func (l *Live) Close() {
	l.closing.Do(func() { close(l.stop) })
	<-l.done
}

// show is the only one who writes.
func (l *Live) show(ticks <-chan time.Time) {
	defer close(l.done)
	drawn := ""
	for ended := false; !ended; {
		select {
		case <-l.wake:
		case <-ticks:
		case <-l.stop:
			ended = true
		}
		l.mu.Lock()
		lines, status := l.lines, ""
		l.lines = nil
		if l.options.Terminal && !ended {
			status = l.status()
		}
		l.mu.Unlock()
		if len(lines) == 0 && status == drawn {
			continue
		}
		var b strings.Builder
		if drawn != "" {
			b.WriteString("\r\x1b[K")
		}
		for _, line := range lines {
			b.WriteString(line)
			b.WriteByte('\n')
		}
		b.WriteString(status)
		drawn = status
		// There is nobody to tell that nobody can be told.
		_, _ = io.WriteString(l.w, b.String())
	}
}

// say queues a line. The caller holds the lock.
func (l *Live) say(line string) {
	if !l.options.Terminal {
		line = l.now().Format("15:04:05 ") + line
	}
	l.lines = append(l.lines, line)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Progress shows news about the work before the guest.
func (l *Live) Progress(e progress.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.steps, func(s *step) bool { return s.Step == e.Step })
	var s *step
	if at >= 0 {
		s = l.steps[at]
	}
	switch e.State {
	case progress.Started, progress.Running:
		if s == nil {
			s = &step{begin: l.now()}
			l.steps = append(l.steps, s)
			if !l.options.Terminal {
				l.say(join(oneLine(e.Step)+": started", oneLine(e.Detail)))
			}
		}
		s.Event = e
		if now := l.now(); !l.options.Terminal && e.State == progress.Running && now.Sub(later(l.reported, l.begin)) >= quiet {
			l.reported = now
			l.say(s.String(now))
		}
	case progress.Finished, progress.Failed:
		begin := l.now()
		if s != nil {
			begin = s.begin
			l.steps = slices.Delete(l.steps, at, at+1)
		}
		line := oneLine(e.Step) + ": "
		switch {
		case e.State == progress.Failed:
			line += l.bad("failed") + " after " + seconds(l.now().Sub(begin))
		case e.Cached:
			line += "cached"
		default:
			line += "done in " + seconds(l.now().Sub(begin))
		}
		l.say(join(line, oneLine(e.Detail)))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// join adds what there is to add.
func join(line, detail string) string {
	if detail == "" {
		return line
	}
	return line + ", " + detail
}

// String is the step in a few words: "kernel 120/1346 0:42 CC net/core/sock.o".
func (s *step) String(now time.Time) string {
	parts := []string{oneLine(s.Step)}
	switch {
	case s.Total > 0:
		parts = append(parts, fmt.Sprintf("%d/%d", s.Done, s.Total))
	case s.Done > 0:
		parts = append(parts, fmt.Sprint(s.Done))
	}
	parts = append(parts, clock(now.Sub(s.begin)))
	if detail := oneLine(s.Detail); detail != "" {
		parts = append(parts, detail)
	}
	return strings.Join(parts, " ")
}

func clock(d time.Duration) string {
	n := int(d / time.Second)
	if n >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", n/3600, n/60%60, n%60)
	}
	return fmt.Sprintf("%d:%02d", n/60, n%60)
}

// status is the line for what goes on; it leaves the last column free, where
// terminals differ. The caller holds the lock.
func (l *Live) status() string {
	now := l.now()
	var parts []string
	if l.suite != "" {
		name := l.suite
		if l.test != "" {
			name += "/" + l.test
		}
		parts = append(parts, clock(now.Sub(l.since))+" "+oneLine(name))
	}
	for _, s := range l.steps {
		parts = append(parts, s.String(now))
	}
	return fit(strings.Join(parts, " | "), l.options.Width-1)
}

// Event shows an event of the guest.
func (l *Live) Event(e verdict.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := e.Suite
	if e.Test != "" {
		name += "/" + e.Test
	}
	name = oneLine(name)
	text := oneLine(e.Text)
	note := func(what string) {
		if name != "" {
			what += " (" + name + ")"
		}
		if text != "" {
			what += ": " + text
		}
		l.say(what)
	}
	switch e.Kind {
	case verdict.Launch:
		l.run("guest", "")
		note(fmt.Sprintf("guest %d starts", max(e.Boot, 1)))
	case verdict.Hello:
		l.run("", "")
		l.say("guest is up, kernel " + text)
	case verdict.Begin:
		l.run(e.Suite, "")
		if !l.options.Terminal {
			l.say(name + ": begins")
		}
	case verdict.TestStart:
		l.run(e.Suite, e.Test)
		if up := e.Suite + "/" + verdict.Parent(e.Test); verdict.Parent(e.Test) != "" && l.parents[up] == 0 {
			l.parents[up] = verdict.Pass
		}
	case verdict.TestEnd:
		l.ended(&e, name)
	case verdict.Exited:
		l.run("", "")
		if e.Failed {
			note(l.bad("program ended badly"))
		}
	case verdict.Deadline:
		note(l.bad("deadline"))
	case verdict.Cancelled:
		note(l.bad("interrupted"))
	case verdict.Broken:
		l.run("", "")
		note(l.bad("stream broken"))
	case verdict.Gone:
		l.run("", "")
		note(l.bad("guest gone"))
	case verdict.Trouble:
		note("trouble")
	case verdict.Done:
		l.run("", "")
	case verdict.Output, verdict.Kmsg, verdict.Console:
	}
}

func (l *Live) run(suite, test string) {
	l.suite, l.test, l.since = suite, test, l.now()
}

// ended shows a test that ended. One whose sub-tests say it all has no line.
func (l *Live) ended(e *verdict.Event, name string) {
	l.run(e.Suite, verdict.Parent(e.Test))
	if verdict.Parent(e.Test) != "" {
		up := e.Suite + "/" + verdict.Parent(e.Test)
		l.parents[up] = max(l.parents[up], e.Outcome)
	}
	if worst, parent := l.parents[e.Suite+"/"+e.Test]; parent && (e.Outcome.Good() || !worst.Good()) {
		return
	}
	word := fmt.Sprintf("%-5s", e.Outcome)
	l.say(fmt.Sprintf("%s %s (%s)", l.as(e.Outcome, word), name, seconds(e.Elapsed)))
}

// columns is how many columns of a terminal s takes.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// fit cuts s to at most limit columns.
func fit(s string, limit int) string {
	if columns(s) <= limit {
		return s
	}
	n := 0
	for i, r := range s {
		n += runeColumns(r)
		if n > limit-3 {
			return s[:i] + "..."[:max(0, min(3, limit))]
		}
	}
	return s
}
