// SPDX-License-Identifier: MIT

// Package run drives one cell: it boots guests, has the suites run in them,
// and reports all that happens as events. What the events mean is not its
// business.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/gotest"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
	"patchbay/harness/wire"
)

// Guest is a machine that boots or has booted.
type Guest interface {
	// Accept waits for the connection to the agent.
	Accept(context.Context) (net.Conn, error)
	// Gone is closed when nothing of the machine is left.
	Gone() <-chan struct{}
	// Stop kills it and waits for Gone.
	Stop()
}

// Suite is a test program as the guest has it.
type Suite struct {
	verdict.Suite
	// Path is where the guest finds the program.
	Path string
	// SelfMarking suites write their own markers into the kernel log.
	SelfMarking bool
}

// Deadlines bound the parts of a run, scaled to the machine already.
type Deadlines struct {
	// Boot is from the start of vng to the agent's hello.
	Boot time.Duration
	// Test bounds each test, Suite each program.
	Test, Suite time.Duration
}

// Cell is what to run.
type Cell struct {
	Suites    []Suite
	Deadlines Deadlines
	// Scale is told to the tests, which multiply their own deadlines by it.
	Scale float64
	// Boot starts guest number n, from 1.
	Boot func(ctx context.Context, n int) (Guest, error)
	// Consoles returns what guest number n printed on its consoles, the
	// best source first.
	Consoles func(n int) []string
	// MaxBoots bounds how often a guest is started, for the tests that a
	// crash or a hang kept from running.
	MaxBoots int
}

// Run runs the cell and hands every event to sink, in order, from one
// goroutine. The error is the host's or the harness's; all that goes wrong in
// a guest is an event.
func Run(ctx context.Context, c Cell, sink func(verdict.Event)) error {
	left := newRemaining(c.Suites)
	why := ""
	for n := 1; n <= c.MaxBoots; n++ {
		b := &boot{Cell: c, n: n, left: left, sink: sink}
		b.event(verdict.Event{Kind: verdict.Launch, Text: why})
		progress, err := b.run(ctx)
		if err != nil {
			return err
		}
		if ctx.Err() != nil || !progress || left.none() {
			return nil
		}
		why = fmt.Sprintf("%d tests are left after the last guest ended early", left.count())
	}
	return nil
}

// remaining holds the tests that have not had their run.
type remaining struct {
	suites []Suite
	tests  map[string][]string
}

func newRemaining(suites []Suite) *remaining {
	r := &remaining{suites: suites, tests: map[string][]string{}}
	for _, s := range suites {
		r.tests[s.Name] = slices.Clone(s.Tests)
	}
	return r
}

func (r *remaining) began(suite, test string) {
	r.tests[suite] = slices.DeleteFunc(r.tests[suite], func(name string) bool { return name == test })
}

func (r *remaining) count() int {
	n := 0
	for _, tests := range r.tests {
		n += len(tests)
	}
	return n
}

func (r *remaining) none() bool { return r.count() == 0 }

// boot is one guest of a cell.
type boot struct {
	Cell
	n    int
	left *remaining
	sink func(verdict.Event)

	enc     *wire.Encoder[wire.ToGuest]
	frames  chan *wire.FromGuest
	failed  error // why frames was closed; read it afterwards
	records []klog.Record
	counts  wire.Done
	hello   bool
	begun   bool

	id      int
	suite   *Suite
	parsers [2]*gotest.Parser
	partial [2]string
	bytes   uint64
	current string
}

func (b *boot) event(e verdict.Event) {
	e.At, e.Boot = time.Now(), b.n
	b.sink(e)
}

// killGrace is how long a program may take to die, or the agent to say so,
// before the guest is ended instead.
const killGrace = 5 * time.Second

// run boots the guest and has it work through what is left. It reports
// whether any test began or everything was answered.
func (b *boot) run(ctx context.Context) (progress bool, err error) {
	g, err := b.Boot(ctx, b.n)
	if err != nil {
		return false, err
	}
	defer g.Stop()
	if !b.converse(ctx, g) {
		g.Stop()
		b.lastWords()
	}
	return b.begun, nil
}

// converse leads the conversation with the agent and reports whether it came
// to its proper end.
func (b *boot) converse(ctx context.Context, g Guest) bool {
	bootCtx, cancel := context.WithTimeout(ctx, b.Deadlines.Boot)
	defer cancel()
	conn, err := g.Accept(bootCtx)
	if err != nil {
		b.noAnswer(ctx, err)
		return false
	}
	defer conn.Close()
	b.enc = wire.NewEncoder[wire.ToGuest](conn)
	b.frames = make(chan *wire.FromGuest, 64)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(b.frames)
		dec := wire.NewDecoder[wire.FromGuest](conn)
		for {
			f, err := dec.Decode()
			if err != nil {
				b.failed = err
				return
			}
			select {
			case b.frames <- f:
			case <-stop:
				return
			}
		}
	}()

	f, err := b.next(bootCtx)
	if err != nil {
		if bootCtx.Err() == nil {
			b.ended(g)
		} else {
			b.noAnswer(ctx, err)
		}
		return false
	}
	if f.Hello == nil || f.Hello.Version != wire.Version {
		b.event(verdict.Event{Kind: verdict.Broken, Text: "the agent speaks another version of the protocol; rebuild it with make build"})
		return false
	}
	b.hello = true
	b.event(verdict.Event{Kind: verdict.Hello, Text: klog.Escape(f.Hello.Release)})
	_ = b.enc.Encode(wire.ToGuest{Hello: &wire.HostHello{Version: wire.Version}})

	for i := range b.left.suites {
		s := &b.left.suites[i]
		if len(b.left.tests[s.Name]) == 0 {
			continue
		}
		if !b.program(ctx, g, s) {
			return false
		}
	}
	return b.finish(ctx, g)
}

// next returns the next frame, or an error when there will be none or ctx ends.
func (b *boot) next(ctx context.Context) (*wire.FromGuest, error) {
	select {
	case f, ok := <-b.frames:
		if !ok {
			return nil, b.failed
		}
		return f, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *boot) noAnswer(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		b.cancelled()
	case errors.Is(err, context.DeadlineExceeded):
		b.event(verdict.Event{Kind: verdict.Deadline, Text: fmt.Sprintf("it did not come up within the boot deadline of %v", b.Deadlines.Boot)})
	default:
		b.event(verdict.Event{Kind: verdict.Gone, Text: "QEMU ended before the agent could connect"})
	}
}

func (b *boot) cancelled() {
	b.event(verdict.Event{Kind: verdict.Cancelled, Text: "the run was interrupted"})
}

// ended says how the stream ended: with the guest, or without.
func (b *boot) ended(g Guest) {
	select {
	case <-g.Gone():
		b.event(verdict.Event{Kind: verdict.Gone, Text: "QEMU ended"})
	case <-time.After(2 * time.Second):
		text := "the agent closed the port while the guest went on"
		if b.failed != nil && !errors.Is(b.failed, io.EOF) && !errors.Is(b.failed, unix.ECONNRESET) {
			text = "protocol: " + b.failed.Error()
		}
		b.event(verdict.Event{Kind: verdict.Broken, Text: text})
	}
}

// program has one suite run and reports whether the guest is still good for
// the next.
func (b *boot) program(ctx context.Context, g Guest, s *Suite) bool {
	b.id++
	b.suite, b.bytes, b.current = s, 0, ""
	for i := range b.parsers {
		b.parsers[i] = nil
	}
	b.parsers[0] = gotest.NewParser(b.test)
	tests := b.left.tests[s.Name]
	b.event(verdict.Event{Kind: verdict.Begin, Suite: s.Name})
	_ = b.enc.Encode(wire.ToGuest{Run: &wire.Run{
		ID: b.id, Suite: s.Name, Path: s.Path,
		Args: []string{
			"-test.v=test2json", "-test.paniconexit0", "-test.count=1",
			// The host keeps the deadlines: it knows them also when
			// the guest's clock stands still.
			"-test.timeout=0",
			"-test.run=" + gotest.Pattern(tests),
		},
		Env: []string{
			"PATCHBAY_GUEST=1", "PATCHBAY_SUITE=" + s.Name,
			fmt.Sprintf("PATCHBAY_SCALE=%g", b.Scale),
		},
		Mark: !s.SelfMarking,
	}})

	suiteEnd := time.Now().Add(b.Deadlines.Suite)
	testEnd := time.Now().Add(b.Deadlines.Test)
	var killEnd time.Time
	on := b.current
	for {
		if b.current != on {
			on, testEnd = b.current, time.Now().Add(b.Deadlines.Test)
		}
		end := suiteEnd
		if testEnd.Before(end) {
			end = testEnd
		}
		if !killEnd.IsZero() {
			end = killEnd
		}
		step, cancel := context.WithDeadline(ctx, end)
		f, err := b.next(step)
		timedOut := step.Err() != nil
		cancel()
		switch {
		case err == nil:
			if exited := b.take(f); exited {
				return true
			}
		case ctx.Err() != nil:
			b.cancelled()
			return false
		case !timedOut:
			b.flush()
			b.ended(g)
			return false
		case killEnd.IsZero():
			// The program first: if it can be ended, the kernel is
			// alive and the rest can run without another boot.
			what := fmt.Sprintf("no end within the test deadline of %v", b.Deadlines.Test)
			if !testEnd.Before(suiteEnd) {
				what = fmt.Sprintf("no end within the suite deadline of %v", b.Deadlines.Suite)
			}
			b.event(verdict.Event{Kind: verdict.Deadline, Suite: s.Name, Test: b.current, Text: what})
			_ = b.enc.Encode(wire.ToGuest{Kill: &wire.Kill{ID: b.id}})
			killEnd = time.Now().Add(killGrace)
		default:
			b.flush()
			b.event(verdict.Event{Kind: verdict.Trouble, Text: "the guest did not answer within " + killGrace.String() + " after the deadline and was ended"})
			return false
		}
	}
}

// finish asks for the end of the stream and checks what it claims.
func (b *boot) finish(ctx context.Context, g Guest) bool {
	b.suite = nil
	_ = b.enc.Encode(wire.ToGuest{Finish: &wire.Finish{}})
	step, cancel := context.WithTimeout(ctx, b.Deadlines.Boot)
	defer cancel()
	for {
		f, err := b.next(step)
		switch {
		case ctx.Err() != nil:
			b.cancelled()
			return false
		case err != nil && step.Err() != nil:
			b.event(verdict.Event{Kind: verdict.Deadline, Text: fmt.Sprintf("the agent did not close the stream within %v", b.Deadlines.Boot)})
			return false
		case err != nil:
			b.ended(g)
			return false
		}
		b.take(f)
		if f.Done == nil {
			continue
		}
		if *f.Done != b.counts {
			b.event(verdict.Event{Kind: verdict.Broken, Text: fmt.Sprintf("the agent counted %+v, but %+v arrived", *f.Done, b.counts)})
			return false
		}
		b.event(verdict.Event{Kind: verdict.Done})
		return true
	}
}

// take turns a frame into events and reports whether it was the end of the
// present program.
func (b *boot) take(f *wire.FromGuest) (exited bool) {
	switch {
	case f.Output != nil:
		b.counts.OutputBytes += uint64(len(f.Output.Data))
		b.bytes += uint64(len(f.Output.Data))
		b.output(f.Output)
	case f.Kmsg != nil:
		b.counts.Kmsg++
		r, err := klog.ParseKmsg(f.Kmsg.Record)
		if err != nil {
			b.event(verdict.Event{Kind: verdict.Trouble, Text: "a kernel log record could not be read: " + err.Error()})
			return false
		}
		b.records = append(b.records, r)
		b.marked(&r)
		b.event(verdict.Event{Kind: verdict.Kmsg, Record: &r})
	case f.Trouble != nil:
		b.event(verdict.Event{Kind: verdict.Trouble, Text: "agent: " + klog.Escape(f.Trouble.Text)})
	case f.Exited != nil:
		b.counts.Runs++
		if f.Exited.ID != b.id || b.suite == nil {
			b.event(verdict.Event{Kind: verdict.Trouble, Text: fmt.Sprintf("the agent reports the end of run %d, which is not on", f.Exited.ID)})
			return false
		}
		b.exited(f.Exited)
		return true
	}
	return false
}

func (b *boot) exited(e *wire.Exited) {
	b.flush()
	text := ""
	switch {
	case e.Error != "":
		text = "it could not be started: " + klog.Escape(e.Error)
	case e.Signal != 0:
		text = "killed by " + unix.SignalName(unix.Signal(e.Signal))
	case e.Code != 0:
		text = fmt.Sprintf("exit status %d", e.Code)
	}
	if e.OutputBytes != b.bytes {
		b.event(verdict.Event{Kind: verdict.Trouble, Text: fmt.Sprintf("%s: %d bytes of output were sent, %d arrived", b.suite.Name, e.OutputBytes, b.bytes)})
	}
	b.event(verdict.Event{Kind: verdict.Exited, Suite: b.suite.Name, Elapsed: e.Elapsed, Text: text, Failed: text != ""})
}

func (b *boot) output(o *wire.Output) {
	if b.suite == nil || o.ID != b.id {
		b.event(verdict.Event{Kind: verdict.Trouble, Text: fmt.Sprintf("%d bytes of output of run %d, which is not on, were left out", len(o.Data), o.ID)})
		return
	}
	if o.Stream == 1 {
		_, _ = b.parsers[0].Write(o.Data)
		return
	}
	// What goes to standard error, a panic's trace mostly, belongs to
	// whatever runs at the moment.
	b.print(1, b.current, o.Data)
}

func (b *boot) test(e gotest.Event) {
	switch e.Kind {
	case gotest.Start:
		b.begun = true
		b.current = e.Test
		b.left.began(b.suite.Name, e.Test)
		b.event(verdict.Event{Kind: verdict.TestStart, Suite: b.suite.Name, Test: klog.Escape(e.Test)})
	case gotest.End:
		b.flushPartial(0, e.Test)
		b.current = verdict.Parent(e.Test)
		outcome := map[gotest.Result]verdict.Outcome{gotest.Pass: verdict.Pass, gotest.Fail: verdict.Fail, gotest.Skip: verdict.Skip}[e.Result]
		b.event(verdict.Event{Kind: verdict.TestEnd, Suite: b.suite.Name, Test: klog.Escape(e.Test), Outcome: outcome, Elapsed: e.Elapsed})
	case gotest.Output:
		b.print(0, e.Test, e.Text)
	}
}

// print hands out whole lines, so that no character is cut in two.
func (b *boot) print(stream int, test string, data []byte) {
	text := b.partial[stream] + string(data)
	end := strings.LastIndexByte(text, '\n') + 1
	if end == 0 && len(text) >= wire.MaxChunk {
		end = len(text)
	}
	b.partial[stream] = text[end:]
	b.text(test, text[:end])
}

func (b *boot) flushPartial(stream int, test string) {
	if text := b.partial[stream]; text != "" {
		b.partial[stream] = ""
		b.text(test, text+"\n")
	}
}

func (b *boot) flush() {
	if b.parsers[0] != nil {
		_ = b.parsers[0].Close()
	}
	b.flushPartial(0, b.current)
	b.flushPartial(1, b.current)
}

func (b *boot) text(test, text string) {
	if text == "" {
		return
	}
	b.event(verdict.Event{Kind: verdict.Output, Suite: b.suite.Name, Test: klog.Escape(test), Text: klog.EscapeLines(text)})
}

// marked notes a test whose start only the kernel log tells of: the guest died
// before the test program's own word got out. It is not run a second time.
func (b *boot) marked(r *klog.Record) {
	if verb, suite, test, ok := verdict.Marker(r); ok && verb == "start" {
		b.begun = true
		b.left.began(suite, test)
	}
}

// consoleLimit bounds how much of a console is read, in bytes.
const consoleLimit = 64 << 20

// lastWords looks on the console for what the agent could not send any more.
func (b *boot) lastWords() {
	for _, path := range b.Consoles(b.n) {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		console, err := klog.ParseConsole(io.LimitReader(f, consoleLimit))
		f.Close()
		if err != nil {
			b.event(verdict.Event{Kind: verdict.Trouble, Text: "reading the console: " + err.Error()})
		}
		if len(console) == 0 {
			continue
		}
		for _, r := range klog.Merge(b.records, console) {
			if r.FromConsole() {
				b.marked(&r)
				b.event(verdict.Event{Kind: verdict.Console, Record: &r})
			}
		}
		return
	}
}
