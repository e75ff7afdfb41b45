// SPDX-License-Identifier: MIT

// Package agent is the guest's side: as PID 1 it sets the machine up, then it
// runs what the host asks for, streams output and kernel log, and counts.
package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/gotest"
	"patchbay/harness/wire"
)

// Machine is what the agent needs to know of, and do to, the machine it runs
// on. The guest's own is made by Boot; tests bring theirs.
type Machine struct {
	// Hello is sent first.
	Hello wire.GuestHello
	// Log is the kernel log.
	Log Log
	// Trouble lists what went wrong while the machine was set up.
	Trouble []string
	// Settle, if set, is called before the log is closed: it waits for what
	// the kernel still has to say about the programs that ended.
	Settle func()
	// Sweep, if set, ends every process that a program left behind.
	Sweep func()
}

// Log is the kernel's log, as /dev/kmsg offers it.
type Log interface {
	// Read returns one record. It blocks while there is none.
	io.Reader
	// Write appends one record.
	io.Writer
}

// endMark is written to the kernel log when the host asks for the end; once it
// comes back, everything before it has been sent.
const endMark = "patchbay: end of log"

// Serve talks to the host over conn until the host has asked for the end and
// got it, or until conn fails. A nil return means that Done was sent.
func Serve(conn io.ReadWriter, m Machine) error {
	s := &server{
		Machine: m,
		enc:     wire.NewEncoder[wire.FromGuest](conn),
		logEnd:  make(chan struct{}),
	}
	m.Hello.Version = wire.Version
	if err := s.enc.Encode(wire.FromGuest{Hello: &m.Hello}); err != nil {
		return fmt.Errorf("saying hello: %w", err)
	}
	dec := wire.NewDecoder[wire.ToGuest](conn)
	first, err := dec.Decode()
	if err != nil {
		return fmt.Errorf("waiting for the host's hello: %w", err)
	}
	if first.Hello == nil || first.Hello.Version != wire.Version {
		return errors.New("the host speaks another version of the protocol")
	}
	for _, text := range m.Trouble {
		s.trouble(text)
	}
	go s.streamLog()

	for {
		frame, err := dec.Decode()
		if err != nil {
			s.kill(0)
			return fmt.Errorf("reading from the host: %w", err)
		}
		switch {
		case frame.Run != nil:
			s.start(*frame.Run)
		case frame.Kill != nil:
			s.kill(frame.Kill.ID)
		case frame.Finish != nil:
			return s.finish()
		}
	}
}

type server struct {
	Machine
	enc    *wire.Encoder[wire.FromGuest]
	logEnd chan struct{}

	running sync.WaitGroup
	mu      sync.Mutex
	current *os.Process
	id      int
	killed  bool
	done    wire.Done
}

func (s *server) trouble(text string) {
	_ = s.enc.Encode(wire.FromGuest{Trouble: &wire.Trouble{Text: text}})
}

// streamLog sends the kernel log, from its first record on.
func (s *server) streamLog() {
	defer close(s.logEnd)
	// The kernel's own limit for one record, PRINTK_MESSAGE_MAX with its
	// prefix and properties, is well below this.
	buf := make([]byte, 16<<10)
	for {
		n, err := s.Log.Read(buf)
		switch {
		case errors.Is(err, unix.EPIPE):
			// Records were overwritten before they were read; the
			// numbers of the next one show how many.
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			s.trouble(fmt.Sprintf("reading the kernel log: %v", err))
			return
		}
		if err := s.enc.Encode(wire.FromGuest{Kmsg: &wire.Kmsg{Record: buf[:n]}}); err != nil {
			return
		}
		s.mu.Lock()
		s.done.Kmsg++
		s.mu.Unlock()
		if isEndMark(buf[:n]) {
			return
		}
	}
}

// isEndMark tells whether a record's message, between the first semicolon and
// the end of the line, is endMark.
func isEndMark(record []byte) bool {
	for i, c := range record {
		if c == ';' {
			text := record[i+1:]
			return len(text) > len(endMark) && string(text[:len(endMark)]) == endMark && text[len(endMark)] == '\n'
		}
	}
	return false
}

func (s *server) mark(format string, args ...any) {
	if _, err := fmt.Fprintf(s.Log, "<6>patchbay: "+format+"\n", args...); err != nil {
		s.trouble(fmt.Sprintf("writing a marker to the kernel log: %v", err))
	}
}

// sender turns writes into Output frames.
type sender struct {
	s      *server
	id     int
	stream int
	total  *uint64
	tests  *gotest.Parser
}

func (w *sender) Write(data []byte) (int, error) {
	n := len(data)
	for len(data) > 0 {
		chunk := data[:min(len(data), wire.MaxChunk)]
		data = data[len(chunk):]
		if w.tests != nil {
			_, _ = w.tests.Write(chunk)
		}
		err := w.s.enc.Encode(wire.FromGuest{Output: &wire.Output{ID: w.id, Stream: w.stream, Data: chunk}})
		if err != nil {
			return 0, err
		}
		w.s.mu.Lock()
		*w.total += uint64(len(chunk))
		w.s.done.OutputBytes += uint64(len(chunk))
		w.s.mu.Unlock()
	}
	return n, nil
}

// start starts a program and returns; the end is reported when it comes.
func (s *server) start(run wire.Run) {
	exited := wire.Exited{ID: run.ID, Code: -1}
	s.mu.Lock()
	busy := s.current != nil
	s.mu.Unlock()
	if busy {
		exited.Error = "another program is running"
		s.exited(exited)
		return
	}

	cmd := exec.Command(run.Path, run.Args...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "TMPDIR=/tmp"}, run.Env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A process that outlives the program can hold its output open.
	cmd.WaitDelay = time.Second
	stdout := &sender{s: s, id: run.ID, stream: 1, total: &exited.OutputBytes}
	if run.Mark {
		stdout.tests = gotest.NewParser(func(e gotest.Event) {
			switch e.Kind {
			case gotest.Start:
				s.mark("start %s/%s", run.Suite, e.Test)
			case gotest.End:
				s.mark("end %s/%s", run.Suite, e.Test)
			}
		})
	}
	cmd.Stdout = stdout
	cmd.Stderr = &sender{s: s, id: run.ID, stream: 2, total: &exited.OutputBytes}

	s.mark("run %s", run.Suite)
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		exited.Error = err.Error()
		s.exited(exited)
		return
	}
	s.mu.Lock()
	s.current, s.id, s.killed = cmd.Process, run.ID, false
	s.mu.Unlock()
	_ = s.enc.Encode(wire.FromGuest{Started: &wire.Started{ID: run.ID, PID: cmd.Process.Pid}})

	s.running.Go(func() {
		err := cmd.Wait()
		exited.Elapsed = time.Since(begin)
		if s.Sweep != nil {
			s.Sweep()
		}
		s.mu.Lock()
		exited.Killed = s.killed
		s.current = nil
		s.mu.Unlock()
		if state := cmd.ProcessState; state == nil {
			exited.Error = err.Error()
		} else if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			exited.Signal = int(ws.Signal())
		} else {
			exited.Code = state.ExitCode()
		}
		s.mark("exit %s", run.Suite)
		s.exited(exited)
	})
}

func (s *server) exited(e wire.Exited) {
	s.mu.Lock()
	s.done.Runs++
	s.mu.Unlock()
	_ = s.enc.Encode(wire.FromGuest{Exited: &e})
}

// kill ends run id, or whatever runs if id is 0, first with SIGQUIT, which
// makes a Go program say where its goroutines are.
func (s *server) kill(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || (id != 0 && s.id != id) {
		return
	}
	s.killed = true
	group := -s.current.Pid
	_ = unix.Kill(group, unix.SIGQUIT)
	time.AfterFunc(2*time.Second, func() { _ = unix.Kill(group, unix.SIGKILL) })
}

// finish sends what is left and closes the stream.
func (s *server) finish() error {
	s.running.Wait()
	if s.Settle != nil {
		s.Settle()
	}
	if _, err := fmt.Fprintf(s.Log, "<6>%s\n", endMark); err != nil {
		s.trouble(fmt.Sprintf("writing to the kernel log: %v", err))
		return fmt.Errorf("closing the kernel log: %w", err)
	}
	<-s.logEnd
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	return s.enc.Encode(wire.FromGuest{Done: &done})
}
