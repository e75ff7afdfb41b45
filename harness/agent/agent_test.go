// SPDX-License-Identifier: MIT

package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/agent/agenttest"
	"patchbay/harness/wire"
)

// memoryLog is a kernel log that starts with one record of the kernel's.
type memoryLog struct {
	mu      sync.Mutex
	wake    *sync.Cond
	records []string
	read    int
	// overrun makes the next read fail once, as after records were lost.
	overrun bool
}

func newMemoryLog() *memoryLog {
	l := &memoryLog{records: []string{"6,0,0,-;Linux version 6.12.0\n"}}
	l.wake = sync.NewCond(&l.mu)
	return l
}

func (l *memoryLog) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overrun {
		l.overrun = false
		return 0, unix.EPIPE
	}
	for l.read == len(l.records) {
		l.wake.Wait()
	}
	l.read++
	return copy(p, l.records[l.read-1]), nil
}

func (l *memoryLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimPrefix(string(p), "<6>")
	l.records = append(l.records, fmt.Sprintf("14,%d,1,-;%s", len(l.records), text))
	l.wake.Broadcast()
	return len(p), nil
}

// programs makes the two programs that the contract wants.
func programs(t *testing.T) (dir string) {
	dir = t.TempDir()
	for name, script := range map[string]string{
		agenttest.TalkerPath:  "printf '" + strings.TrimSpace(agenttest.Said) + "\\n'; printf '" + strings.TrimSpace(agenttest.Complained) + "\\n' >&2; exit 3",
		agenttest.SleeperPath: "exec sleep 600",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAgentKeepsTheContract(t *testing.T) {
	dir := programs(t)
	t.Chdir(dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	agenttest.Contract(t, func(_ *testing.T, conn net.Conn) {
		_ = Serve(conn, Machine{Log: newMemoryLog()})
	})
}

// talk serves one run with the real agent and returns all frames.
func talk(t *testing.T, m Machine, run wire.Run) []*wire.FromGuest {
	t.Helper()
	near, far := agenttest.Pipe()
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(20 * time.Second))
	go func() { _ = Serve(far, m) }()
	enc, dec := wire.NewEncoder[wire.ToGuest](near), wire.NewDecoder[wire.FromGuest](near)
	var frames []*wire.FromGuest
	for {
		f, err := dec.Decode()
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
		switch {
		case f.Hello != nil:
			_ = enc.Encode(wire.ToGuest{Hello: &wire.HostHello{Version: wire.Version}})
			_ = enc.Encode(wire.ToGuest{Run: &run})
		case f.Exited != nil:
			_ = enc.Encode(wire.ToGuest{Finish: &wire.Finish{}})
		case f.Done != nil:
			return frames
		}
	}
}

func logOf(frames []*wire.FromGuest) string {
	var b strings.Builder
	for _, f := range frames {
		if f.Kmsg != nil {
			b.Write(f.Kmsg.Record)
		}
	}
	return b.String()
}

func TestMarksTests(t *testing.T) {
	script := `printf '\026=== RUN   TestA\n\026=== RUN   TestA/sub\n\026--- PASS: TestA/sub (0.00s)\n\026--- PASS: TestA (0.00s)\n'`
	for _, mark := range []bool{true, false} {
		frames := talk(t, Machine{Log: newMemoryLog()}, wire.Run{ID: 1, Suite: "s", Path: "/bin/sh", Args: []string{"-c", script}, Mark: mark})
		got := logOf(frames)
		for _, want := range []string{"start s/TestA\n", "start s/TestA/sub\n", "end s/TestA/sub\n", "end s/TestA\n"} {
			if strings.Contains(got, "patchbay: "+want) != mark {
				t.Errorf("mark %v: %q in the log is %v\n%s", mark, want, !mark, got)
			}
		}
	}
}

func TestLostRecordsAreSurvived(t *testing.T) {
	log := newMemoryLog()
	log.overrun = true
	frames := talk(t, Machine{Log: log}, wire.Run{ID: 1, Suite: "s", Path: "/bin/true"})
	if got := logOf(frames); !strings.Contains(got, "Linux version") || !strings.Contains(got, endMark) {
		t.Errorf("the log ended at the overrun:\n%s", got)
	}
}

type brokenLog struct{ memoryLog }

func (*brokenLog) Read([]byte) (int, error) { return 0, errors.New("no log today") }

func TestBrokenLogIsReported(t *testing.T) {
	log := &brokenLog{}
	log.wake = sync.NewCond(&log.mu)
	for _, f := range talk(t, Machine{Log: log, Trouble: []string{"mounting /proc"}}, wire.Run{ID: 1, Suite: "s", Path: "/bin/true"}) {
		if f.Trouble != nil && strings.Contains(f.Trouble.Text, "no log today") {
			return
		}
	}
	t.Error("nobody was told that the kernel log could not be read")
}

func TestDescriptorsDoNotLeak(t *testing.T) {
	list := func(run wire.Run) string {
		var out string
		for _, f := range talk(t, Machine{Log: newMemoryLog()}, run) {
			if f.Output != nil {
				out += string(f.Output.Data)
			}
		}
		return out
	}
	run := wire.Run{ID: 1, Suite: "s", Path: "/bin/sh", Args: []string{"-c", "for fd in /proc/$$/fd/*; do readlink $fd; done"}}
	// The test's own caller may have left some open; they are in both.
	before := list(run)
	leak, err := unix.Open("/dev/zero", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	if got := list(run); !strings.Contains(got, "/dev/zero") {
		t.Errorf("a leaked descriptor goes unnoticed here:\n%s", got)
	}
	for _, name := range []string{"socket:", "kmsg", "vport"} {
		if strings.Contains(before, name) {
			t.Errorf("the program has a descriptor of the agent's:\n%s", before)
		}
	}
}

func TestParseCPUList(t *testing.T) {
	for list, want := range map[string]int{"0\n": 1, "0-3\n": 4, "0-1,3,8-9": 5, "": 0, "3-1": 0, "x": 0} {
		if got := parseCPUList(list); got != want {
			t.Errorf("%q: %d, want %d", list, got, want)
		}
	}
}
