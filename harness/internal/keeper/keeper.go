// SPDX-License-Identifier: MIT

// Package keeper runs a command so that neither it nor any process it starts,
// however indirectly, outlives the program that asked for it, even when that
// program is killed with SIGKILL.
//
// vng is a chain (vng, sh, virtme-run, QEMU) and make a tree; a parent-death
// signal reaches only the first link, and in Go it is tied to a thread rather
// than to the process. So the program re-executes itself as a small keeper
// that is a child subreaper: orphans of the command become its children. The
// keeper watches a pipe whose other end only the asking program holds; when
// that end closes, for whatever reason, it kills everything below it.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// argv0 marks a re-execution as the keeper.
	argv0 = "patchbay-keeper"
	// lifelineFD is where the keeper finds its end of the pipe.
	lifelineFD = 3
)

// Cmd is an exec.Cmd whose whole process tree ends with Wait, with the
// cancelling of its context, or with the death of this process.
// Use Start, Wait and Run of this type, not those of the embedded one.
type Cmd struct {
	*exec.Cmd

	// Remove lists folders the keeper deletes once the process tree is gone,
	// if this process died before it could do so itself.
	Remove []string

	name     string
	args     []string
	lifeline *os.File
}

// Command prepares name with its arguments. Cancelling ctx kills the whole
// process tree at once.
func Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Cmd: exec.CommandContext(ctx, "/proc/self/exe"), name: name, args: args}
}

// String returns the command that is kept, without the keeper.
func (c *Cmd) String() string { return strings.Join(append([]string{c.name}, c.args...), " ") }

// Start starts the command under its keeper.
func (c *Cmd) Start() error {
	path, err := exec.LookPath(c.name)
	if err != nil {
		return err
	}
	if len(c.ExtraFiles) != 0 {
		return errors.New("a kept command cannot be given extra files")
	}
	c.Cancel = func() error { return c.lifeline.Close() }
	return startKeeper(c.Cmd, &c.lifeline, c.Remove, append([]string{path}, c.args...))
}

// startKeeper starts cmd, which is this program, as a keeper of folders and of a
// command, if there is one. Closing the lifeline, which is set before the start,
// ends it.
func startKeeper(cmd *exec.Cmd, lifeline **os.File, remove, command []string) error {
	keeperEnd, ourEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making the keeper's lifeline: %w", err)
	}
	defer keeperEnd.Close()
	*lifeline = ourEnd
	cmd.ExtraFiles = []*os.File{keeperEnd}
	cmd.Args = slices.Concat([]string{argv0, strconv.Itoa(len(remove))}, remove, command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ourEnd.Close()
		return err
	}
	return nil
}

// Wait waits until the command and everything it started are gone.
func (c *Cmd) Wait() error {
	err := c.Cmd.Wait()
	c.lifeline.Close()
	return err
}

// Run is Start and Wait.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// TempDir makes a folder as os.MkdirTemp does in the usual place, and returns
// with it the function that deletes it. The folder is deleted as well when this
// process dies without calling that function.
func TempDir(pattern string) (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", pattern); err != nil {
		return "", nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	var lifeline *os.File
	if err := startKeeper(cmd, &lifeline, []string{dir}, nil); err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	return dir, func() {
		lifeline.Close()
		_ = cmd.Wait()
	}, nil
}

// Main turns this process into a keeper if it was started as one; otherwise it
// returns at once. Every program that uses Command calls it first thing in
// main, and every test binary in TestMain.
func Main() {
	if len(os.Args) < 3 || os.Args[0] != argv0 {
		return
	}
	os.Exit(keep(os.Args[1:]))
}

func keep(args []string) int {
	count, err := strconv.Atoi(args[0])
	if err != nil || count < 0 || len(args) < 1+count {
		fmt.Fprintln(os.Stderr, "patchbay-keeper: malformed command line")
		return 127
	}
	remove, args := args[1:1+count], args[1+count:]

	// Only the lifeline ends the keeper. A terminal's signals are the asking
	// program's business: it decides what becomes of the command.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGTTOU, unix.SIGTTIN)
	unix.CloseOnExec(lifelineFD)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "patchbay-keeper: becoming a subreaper:", err)
		return 127
	}

	dead := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(lifelineFD, "lifeline"))
		close(dead)
	}()

	if len(args) == 0 {
		// There is no command, only a folder to see to.
		<-dead
		return deleteAll(remove)
	}

	// Ignored signals survive exec; the command must get the defaults back.
	signal.Reset()
	signal.Notify(make(chan os.Signal, 16), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGTTOU, unix.SIGTTIN)
	child, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "patchbay-keeper: starting the command:", err)
		return 127
	}

	status := make(chan syscall.WaitStatus, 1)
	go func() {
		var ws syscall.WaitStatus
		for {
			// Wait for the command alone; orphans are reaped in sweep.
			if _, err := syscall.Wait4(child.Pid, &ws, 0, nil); err != syscall.EINTR {
				break
			}
		}
		status <- ws
	}()

	select {
	case ws := <-status:
		sweep(child.Pid)
		if ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return ws.ExitStatus()
	case <-dead:
		sweep(child.Pid)
		deleteAll(remove)
		return 128 + int(unix.SIGKILL)
	}
}

// deleteAll returns an exit code: 1 if a folder could not be deleted.
func deleteAll(dirs []string) (code int) {
	for _, dir := range dirs {
		if os.RemoveAll(dir) != nil {
			code = 1
		}
	}
	return code
}

// sweep kills every descendant of this process and returns when none is left.
// New ones may appear while it looks, so it repeats until there is no child.
func sweep(group int) {
	_ = unix.Kill(-group, unix.SIGKILL)
	for {
		for _, pid := range Descendants(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err == unix.ECHILD {
				return
			}
			if pid <= 0 {
				break
			}
		}
		// SIGKILL was sent; the kernel needs a moment to act on it.
		time.Sleep(2 * time.Millisecond)
	}
}

// Descendants lists the processes below root, by walking the parent links of
// /proc: the children files there need a kernel option that not all have.
func Descendants(root int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := make(map[int][]int, len(stats))
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// The command name is in parentheses and may itself hold spaces
		// and parentheses; the parent follows the last one.
		end := strings.LastIndexByte(string(data), ')')
		fields := strings.Fields(string(data)[end+1:])
		if end < 0 || len(fields) < 2 {
			continue
		}
		pid, err1 := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		ppid, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			children[ppid] = append(children[ppid], pid)
		}
	}
	var found []int
	queue := []int{root}
	for len(queue) > 0 {
		below := children[queue[0]]
		queue = append(queue[1:], below...)
		found = append(found, below...)
	}
	return found
}
