// SPDX-License-Identifier: MIT

// Package agenttest has a guest without a machine, for tests: it speaks the
// real protocol, and its programs are functions. Contract holds it and the
// real agent to the same behaviour.
package agenttest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/wire"
)

// Program plays a program in a fake guest and returns its exit status.
type Program func(*Process) int

// Fake plays the agent, and QEMU around it.
type Fake struct {
	// Programs are found by wire.Run.Path.
	Programs map[string]Program
	// Deaf fakes never say hello.
	Deaf bool
	// Version replaces the protocol's version in the hello.
	Version int
	// Lie may change what Done says.
	Lie func(*wire.Done)
	// NoDone leaves Done out.
	NoDone bool
	// Console is the file that Die writes the kernel's last words to.
	Console string
}

// Guest is a Fake that was started. It satisfies run.Guest.
type Guest struct {
	conn net.Conn
	gone chan struct{}
	once sync.Once
	// far is the agent's end.
	far net.Conn
}

// Start starts the fake.
func (f *Fake) Start() *Guest {
	near, far := Pipe()
	g := &Guest{conn: near, far: far, gone: make(chan struct{})}
	go func() { _ = f.Serve(far, g.die) }()
	return g
}

// Pipe returns two ends of a connection with buffers, as QEMU's has.
func Pipe() (near, far net.Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		panic(err)
	}
	conns := make([]net.Conn, len(fds))
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pipe")
		if conns[i], err = net.FileConn(f); err != nil {
			panic(err)
		}
		f.Close()
	}
	return conns[0], conns[1]
}

// Accept returns the connection.
func (g *Guest) Accept(context.Context) (net.Conn, error) { return g.conn, nil }

// Gone is closed once the guest has died or was stopped.
func (g *Guest) Gone() <-chan struct{} { return g.gone }

// Stop ends the guest.
func (g *Guest) Stop() { g.die() }

func (g *Guest) die() {
	g.once.Do(func() {
		close(g.gone)
		g.far.Close()
	})
}

// Process is a program that runs in a fake guest.
type Process struct {
	wire.Run
	// Killed is closed when the host asks for the end.
	Killed <-chan struct{}

	s     *session
	bytes uint64
}

type session struct {
	f    *Fake
	enc  *wire.Encoder[wire.FromGuest]
	conn io.ReadWriter
	die  func()

	mu   sync.Mutex
	seq  int
	done wire.Done
}

// Serve plays the agent over conn. die is what Die does to the machine.
func (f *Fake) Serve(conn io.ReadWriter, die func()) error {
	s := &session{f: f, conn: conn, enc: wire.NewEncoder[wire.FromGuest](conn), die: die}
	if f.Deaf {
		_, err := io.Copy(io.Discard, conn)
		return err
	}
	hello := wire.GuestHello{Version: wire.Version, Release: "6.12.0-fake", CPUs: 1, Possible: 1}
	if f.Version != 0 {
		hello.Version = f.Version
	}
	if err := s.enc.Encode(wire.FromGuest{Hello: &hello}); err != nil {
		return err
	}
	dec := wire.NewDecoder[wire.ToGuest](conn)
	var killed chan struct{}
	var running sync.WaitGroup
	for {
		frame, err := dec.Decode()
		if err != nil {
			return err
		}
		switch {
		case frame.Run != nil:
			program := f.Programs[frame.Run.Path]
			if program == nil {
				s.exited(wire.Exited{ID: frame.Run.ID, Code: -1, Error: "no such file or directory"})
				continue
			}
			killed = make(chan struct{})
			p := &Process{Run: *frame.Run, Killed: killed, s: s}
			_ = s.enc.Encode(wire.FromGuest{Started: &wire.Started{ID: p.ID, PID: 100 + p.ID}})
			running.Go(func() {
				code := program(p)
				s.exited(wire.Exited{ID: p.ID, Code: code, OutputBytes: p.bytes, Killed: p.killed(), Elapsed: time.Millisecond})
			})
		case frame.Kill != nil:
			if killed != nil {
				close(killed)
				killed = nil
			}
		case frame.Finish != nil:
			running.Wait()
			s.log("<6>patchbay: end of log")
			s.mu.Lock()
			done := s.done
			s.mu.Unlock()
			if f.Lie != nil {
				f.Lie(&done)
			}
			if f.NoDone {
				die()
				return nil
			}
			return s.enc.Encode(wire.FromGuest{Done: &done})
		}
	}
}

func (s *session) exited(e wire.Exited) {
	s.mu.Lock()
	s.done.Runs++
	s.mu.Unlock()
	_ = s.enc.Encode(wire.FromGuest{Exited: &e})
}

func (s *session) log(text string) {
	level, facility := 6, 0
	if n, err := fmt.Sscanf(text, "<%d>", &level); n == 1 && err == nil {
		text = text[len(fmt.Sprintf("<%d>", level)):]
		facility = 1
	}
	s.mu.Lock()
	record := fmt.Sprintf("%d,%d,%d,-,caller=T1;%s\n", facility<<3|level, s.seq, 1000*s.seq, text)
	s.seq++
	s.done.Kmsg++
	s.mu.Unlock()
	_ = s.enc.Encode(wire.FromGuest{Kmsg: &wire.Kmsg{Record: []byte(record)}})
}

func (p *Process) killed() bool {
	select {
	case <-p.Killed:
		return true
	default:
		return false
	}
}

// Print writes to standard output.
func (p *Process) Print(format string, args ...any) { p.write(1, fmt.Sprintf(format, args...)) }

// PrintError writes to standard error.
func (p *Process) PrintError(format string, args ...any) { p.write(2, fmt.Sprintf(format, args...)) }

func (p *Process) write(stream int, text string) {
	p.bytes += uint64(len(text))
	p.s.mu.Lock()
	p.s.done.OutputBytes += uint64(len(text))
	p.s.mu.Unlock()
	_ = p.s.enc.Encode(wire.FromGuest{Output: &wire.Output{ID: p.ID, Stream: stream, Data: []byte(text)}})
}

// Log appends to the kernel log: as the kernel, or as a user-space writer if
// the text begins with a level in angle brackets.
func (p *Process) Log(text string) { p.s.log(text) }

// SkipLog leaves out n records, as a full ring buffer does.
func (p *Process) SkipLog(n int) {
	p.s.mu.Lock()
	p.s.seq += n
	p.s.mu.Unlock()
}

// Raw writes bytes past the encoder.
func (p *Process) Raw(data []byte) { _, _ = p.s.conn.Write(data) }

// Test prints what the testing package prints around a test, writes the
// markers, and calls body in between. result is PASS, FAIL or SKIP.
func (p *Process) Test(name, result string, body func()) {
	p.Log("<6>patchbay: start " + p.Suite + "/" + name)
	p.Print("\x16=== RUN   %s\n", name)
	if body != nil {
		body()
	}
	p.Log("<6>patchbay: end " + p.Suite + "/" + name)
	p.Print("\x16--- %s: %s (0.00s)\n", result, name)
}

// Die ends the machine with last words on the console, and does not return.
func (p *Process) Die(console string) {
	if p.s.f.Console != "" {
		if err := os.WriteFile(p.s.f.Console, []byte(console), 0o644); err != nil {
			panic(err)
		}
	}
	p.s.die()
	select {}
}

// Hang does nothing until the host asks for the end.
func (p *Process) Hang() { <-p.Killed }

// Programs that Contract expects at these paths: one that prints a line to
// each stream and ends with status 3, and one that goes on until it is killed.
const (
	TalkerPath  = "talker"
	SleeperPath = "sleeper"
	Said        = "to standard output\n"
	Complained  = "to standard error\n"
)

// Contract checks what the host relies on. serve must serve conn with an agent
// that knows the two programs, and with a kernel log that it may write to.
func Contract(t *testing.T, serve func(t *testing.T, conn net.Conn)) {
	begin := func(t *testing.T) (*wire.Encoder[wire.ToGuest], func() *wire.FromGuest) {
		near, far := Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		_ = near.SetDeadline(time.Now().Add(20 * time.Second))
		go serve(t, far)
		enc, dec := wire.NewEncoder[wire.ToGuest](near), wire.NewDecoder[wire.FromGuest](near)
		next := func() *wire.FromGuest {
			t.Helper()
			f, err := dec.Decode()
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		if f := next(); f.Hello == nil || f.Hello.Version != wire.Version {
			t.Fatalf("the first frame is no hello of this version: %+v", f)
		}
		if err := enc.Encode(wire.ToGuest{Hello: &wire.HostHello{Version: wire.Version}}); err != nil {
			t.Fatal(err)
		}
		return enc, next
	}
	send := func(t *testing.T, enc *wire.Encoder[wire.ToGuest], f wire.ToGuest) {
		t.Helper()
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("output and status", func(t *testing.T) {
		enc, next := begin(t)
		send(t, enc, wire.ToGuest{Run: &wire.Run{ID: 1, Suite: "s", Path: TalkerPath}})
		var counts wire.Done
		output := map[int]string{}
		for {
			f := next()
			switch {
			case f.Started != nil && f.Started.ID != 1:
				t.Errorf("another program started: %+v", f.Started)
			case f.Output != nil:
				output[f.Output.Stream] += string(f.Output.Data)
				counts.OutputBytes += uint64(len(f.Output.Data))
			case f.Kmsg != nil:
				counts.Kmsg++
			case f.Exited != nil:
				counts.Runs++
				if f.Exited.Code != 3 || f.Exited.Signal != 0 || f.Exited.OutputBytes != counts.OutputBytes {
					t.Errorf("ended as %+v after %d bytes", f.Exited, counts.OutputBytes)
				}
				send(t, enc, wire.ToGuest{Finish: &wire.Finish{}})
			case f.Trouble != nil:
				t.Errorf("trouble: %s", f.Trouble.Text)
			}
			if f.Done == nil {
				continue
			}
			if *f.Done != counts {
				t.Errorf("counted %+v, arrived %+v", *f.Done, counts)
			}
			if counts.Kmsg == 0 {
				t.Error("no kernel log")
			}
			if output[1] != Said || output[2] != Complained {
				t.Errorf("output %v", output)
			}
			return
		}
	})

	t.Run("kill", func(t *testing.T) {
		enc, next := begin(t)
		send(t, enc, wire.ToGuest{Run: &wire.Run{ID: 1, Suite: "s", Path: SleeperPath}})
		for {
			switch f := next(); {
			case f.Started != nil:
				send(t, enc, wire.ToGuest{Kill: &wire.Kill{ID: 1}})
			case f.Exited != nil:
				if !f.Exited.Killed {
					t.Errorf("ended as %+v", f.Exited)
				}
				return
			}
		}
	})

	t.Run("no such program, then another", func(t *testing.T) {
		enc, next := begin(t)
		send(t, enc, wire.ToGuest{Run: &wire.Run{ID: 1, Suite: "s", Path: "no such program"}})
		for {
			f := next()
			if f.Exited == nil {
				continue
			}
			if f.Exited.ID == 1 {
				if f.Exited.Error == "" {
					t.Errorf("ended as %+v", f.Exited)
				}
				send(t, enc, wire.ToGuest{Run: &wire.Run{ID: 2, Suite: "s", Path: TalkerPath}})
				continue
			}
			if f.Exited.ID != 2 || f.Exited.Code != 3 {
				t.Errorf("ended as %+v", f.Exited)
			}
			return
		}
	})
}
