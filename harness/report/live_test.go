// SPDX-License-Identifier: MIT

package report

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/progress"
	"patchbay/harness/verdict"
)

// screen is as much of a terminal as Live needs, and complains about the rest.
type screen struct {
	t     *testing.T
	mu    sync.Mutex
	width int
	lines []string
	line  []rune
	at    int
	// seen are all states of the last line that had text.
	seen []string
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := string(p)
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b[K"); ok {
			s.line, text = s.line[:s.at], rest
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch {
		case r == '\r':
			s.at = 0
		case r == '\n':
			s.lines = append(s.lines, string(s.line))
			s.line, s.at = nil, 0
		case r < ' ':
			s.t.Errorf("the terminal got %q", r)
		default:
			s.line = append(s.line[:s.at], append([]rune{r}, s.line[min(s.at+1, len(s.line)):]...)...)
			s.at++
		}
	}
	if columns(string(s.line)) >= s.width {
		s.t.Errorf("the status line reaches the edge: %q", string(s.line))
	}
	if len(s.line) > 0 {
		s.seen = append(s.seen, string(s.line))
	}
	return len(p), nil
}

// fakeTime is a clock that stands still, and its ticks.
type fakeTime struct {
	mu    sync.Mutex
	at    time.Time
	ticks chan time.Time
}

func newFakeTime() *fakeTime {
	return &fakeTime{at: time.Date(2026, 12, 4, 2, 46, 0, 0, time.UTC), ticks: make(chan time.Time)}
}

func (f *fakeTime) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *fakeTime) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = f.at.Add(d)
}

// draw has the status line drawn. The second tick is taken when the first has
// been dealt with.
func (f *fakeTime) draw() {
	f.ticks <- f.now()
	f.ticks <- f.now()
}

// aRun plays a run; draw is called where a terminal shows something of note.
func aRun(l *Live, f *fakeTime, draw func()) {
	send := func(step string, state progress.State, done, total int, detail string, cached bool) {
		l.Progress(progress.Event{Step: step, State: state, Done: done, Total: total, Detail: detail, Cached: cached})
	}
	send("import", progress.Finished, 0, 0, "Debian linux-source-6.12", true)
	send("kernel", progress.Started, 9, 1346, "", false)
	send("tests", progress.Started, 0, 0, "", false)
	draw()
	for i := range 7 {
		f.pass(10 * time.Second)
		send("kernel", progress.Running, 100*(i+1), 1346, "CC net/core/skmsg.o", false)
		draw()
	}
	send("tests", progress.Failed, 0, 0, "", false)
	send("kernel", progress.Finished, 0, 0, "6.12.117", false)
	event := func(e verdict.Event) {
		e.Boot = max(e.Boot, 1)
		l.Event(e)
	}
	event(verdict.Event{Kind: verdict.Launch})
	f.pass(time.Second)
	draw()
	event(verdict.Event{Kind: verdict.Hello, Text: "6.12.117"})
	event(verdict.Event{Kind: verdict.Begin, Suite: "s"})
	start := func(test string) { event(verdict.Event{Kind: verdict.TestStart, Suite: "s", Test: test}) }
	end := func(test string, o verdict.Outcome) {
		event(verdict.Event{Kind: verdict.TestEnd, Suite: "s", Test: test, Outcome: o, Elapsed: 30 * time.Millisecond})
	}
	start("T")
	start("T/a")
	f.pass(2 * time.Second)
	draw()
	end("T/a", verdict.Pass)
	start("T/b")
	end("T/b", verdict.Fail)
	end("T", verdict.Fail)
	start("Alone")
	end("Alone", verdict.Skip)
	start("P")
	start("P/a")
	end("P/a", verdict.Pass)
	end("P", verdict.Pass)
	start("Q")
	start("Q/a")
	end("Q/a", verdict.Pass)
	// Nothing below it says so.
	end("Q", verdict.Fail)
	event(verdict.Event{Kind: verdict.Output, Suite: "s", Test: "X", Text: "not shown"})
	start("Hangs")
	event(verdict.Event{Kind: verdict.Deadline, Suite: "s", Test: "Hangs", Text: "no end within the test deadline of 15s"})
	event(verdict.Event{Kind: verdict.Exited, Suite: "s", Failed: true, Text: "killed by SIGKILL"})
	event(verdict.Event{Kind: verdict.Trouble, Text: "agent: cannot mount debugfs"})
	event(verdict.Event{Kind: verdict.Broken, Text: "protocol: frame too long"})
	event(verdict.Event{Kind: verdict.Launch, Boot: 2, Text: "the first one broke"})
	event(verdict.Event{Kind: verdict.Gone, Text: "QEMU ended\nqemu: fatal\n"})
	event(verdict.Event{Kind: verdict.Cancelled, Text: "the run was interrupted"})
}

const permanent = `import: cached, Debian linux-source-6.12
tests: failed after 70.0 s
kernel: done in 70.0 s, 6.12.117
guest 1 starts
guest is up, kernel 6.12.117
pass  s/T/a (0.03 s)
fail  s/T/b (0.03 s)
skip  s/Alone (0.03 s)
pass  s/P/a (0.03 s)
pass  s/Q/a (0.03 s)
fail  s/Q (0.03 s)
deadline (s/Hangs): no end within the test deadline of 15s
program ended badly (s): killed by SIGKILL
trouble: agent: cannot mount debugfs
stream broken: protocol: frame too long
guest 2 starts: the first one broke
guest gone: QEMU ended / qemu: fatal
interrupted: the run was interrupted`

func TestLiveOnATerminal(t *testing.T) {
	f := newFakeTime()
	s := &screen{t: t, width: 60}
	l := newLive(s, LiveOptions{Terminal: true, Width: 60}, f.now, f.ticks)
	aRun(l, f, f.draw)
	l.Close()
	l.Close()
	if diff := cmp.Diff(strings.Split(permanent, "\n"), s.lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(s.line) != 0 || s.at != 0 {
		t.Errorf("the status line is left: %q", string(s.line))
	}
	seen := strings.Join(s.seen, "\n")
	for _, want := range []string{
		"kernel 9/1346 0:00 | tests 0:00",
		"kernel 700/1346 1:10 CC net/core/skmsg.o | tests 1:10",
		"0:01 guest", "0:02 s/T/a",
	} {
		if !strings.Contains(seen, want) {
			t.Errorf("the status never was %q:\n%s", want, seen)
		}
	}
	// After Close nothing is written any more, and nothing blocks.
	before := len(s.lines)
	l.Event(verdict.Event{Kind: verdict.Trouble, Text: "late"})
	l.Progress(progress.Event{Step: "late", State: progress.Failed})
	if l.Close(); len(s.lines) != before {
		t.Error("it writes after Close")
	}
}

func TestLiveInAFile(t *testing.T) {
	f := newFakeTime()
	var b strings.Builder
	l := newLive(&b, LiveOptions{}, f.now, nil)
	aRun(l, f, func() {})
	l.Close()
	var got []string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.TrimSuffix(line, "\n"))
	}
	// The same lines as on a terminal, with what the status line says there in
	// between.
	var want []string
	for i, line := range strings.Split(permanent, "\n") {
		at := "02:47:10 "
		switch {
		case i == 0:
			at = "02:46:00 "
		case i == 4:
			at = "02:47:11 "
		case i > 4:
			at = "02:47:13 "
		}
		want = append(want, at+line)
		switch i {
		case 0:
			want = append(
				want, "02:46:00 kernel: started", "02:46:00 tests: started",
				"02:46:30 kernel 300/1346 0:30 CC net/core/skmsg.o", "02:47:00 kernel 600/1346 1:00 CC net/core/skmsg.o",
			)
		case 4:
			want = append(want, "02:47:11 s: begins")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLiveHostile(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		f := newFakeTime()
		s := &screen{t: t, width: 80}
		l := newLive(s, LiveOptions{Terminal: terminal}, f.now, f.ticks)
		draw := f.draw
		if !terminal {
			draw = func() {}
		}
		for _, state := range []progress.State{progress.Started, progress.Running, progress.Failed, progress.Started} {
			l.Progress(progress.Event{Step: hostile, State: state, Detail: hostile})
			draw()
		}
		for _, kind := range []verdict.Kind{
			verdict.Launch, verdict.Hello, verdict.Begin, verdict.TestStart, verdict.TestEnd, verdict.Output, verdict.Kmsg, verdict.Console,
			verdict.Exited, verdict.Done, verdict.Trouble, verdict.Deadline, verdict.Cancelled, verdict.Broken, verdict.Gone, verdict.Kind(hostile),
		} {
			l.Event(verdict.Event{Kind: kind, Suite: hostile, Test: hostile, Text: hostile, Failed: true, Outcome: verdict.Fail})
			draw()
		}
		l.Close()
		for _, line := range append(s.lines, s.seen...) {
			if found := unsafeRune(line, false); found != "" || len(line) > 10*longLine {
				t.Errorf("a line of %d bytes, with %s", len(line), found)
			}
		}
		if len(s.lines) < 9 {
			t.Errorf("only %d lines", len(s.lines))
		}
	}
}

func TestLiveConcurrently(t *testing.T) {
	s := &screen{t: t, width: 80}
	l := NewLive(s, LiveOptions{Terminal: true, Color: false})
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			for i := range 100 {
				l.Progress(progress.Event{Step: fmt.Sprint(n), State: progress.Running, Done: i})
				l.Event(verdict.Event{Kind: verdict.Trouble, Text: "x"})
			}
		})
	}
	wg.Wait()
	wg.Go(l.Close)
	l.Close()
	wg.Wait()
	if len(s.lines) != 400 {
		t.Errorf("%d lines, want 400", len(s.lines))
	}
}

// stuck is a terminal that somebody stopped with Ctrl-S.
type stuck struct{ entered, free chan struct{} }

func (s stuck) Write(p []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.free
	return 0, errors.New("gone")
}

func TestLiveNeverWaitsForTheReader(t *testing.T) {
	s := stuck{make(chan struct{}), make(chan struct{})}
	l := NewLive(s, LiveOptions{})
	l.Event(verdict.Event{Kind: verdict.Trouble, Text: "x"})
	<-s.entered
	for range 1000 {
		l.Event(verdict.Event{Kind: verdict.Trouble, Text: "x"})
		l.Progress(progress.Event{Step: "kernel", State: progress.Finished})
	}
	close(s.free)
	l.Close()
}

func TestFit(t *testing.T) {
	for _, tc := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcdefgh", 6, "abc..."},
		{"漢字漢字", 8, "漢字漢字"},
		{"漢字漢字", 7, "漢字..."},
		{"漢字漢字", 6, "漢..."},
		{"abc", 2, ".."},
		{"abc", 0, ""},
		{"abc", -1, ""},
	} {
		if got := fit(tc.in, tc.limit); got != tc.want {
			t.Errorf("fit(%q, %d) = %q, want %q", tc.in, tc.limit, got, tc.want)
		}
	}
}
