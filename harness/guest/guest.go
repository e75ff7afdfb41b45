// SPDX-License-Identifier: MIT

// Package guest boots a kernel in QEMU through virtme-ng, with the agent as
// PID 1, and makes sure that it is gone afterwards.
package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/wire"
)

// Accel is what runs the guest's instructions. The zero value is invalid.
type Accel uint8

// The accelerators.
const (
	_ Accel = iota
	// KVM is the host's hardware virtualisation.
	KVM
	// TCG is QEMU's emulation.
	TCG
)

// String returns the name that QEMU uses.
func (a Accel) String() string {
	if a == KVM {
		return "kvm"
	}
	return "tcg"
}

// Detect returns KVM if /dev/kvm can be used, else TCG and the reason.
func Detect() (Accel, string) {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return TCG, fmt.Sprintf("/dev/kvm: %v", err)
	}
	unix.Close(fd)
	return KVM, ""
}

// Spec describes a guest.
type Spec struct {
	// Kernel and Initrd are paths on the host.
	Kernel, Initrd string
	// CPUs is the number of virtual CPUs, Memory the guest's memory in bytes.
	CPUs   int
	Memory int64
	Accel  Accel
	// Append holds further kernel arguments.
	Append []string
	// Console and Serial are the files that receive the kernel's console
	// and what the serial port and vng itself say. They are created.
	Console, Serial string
}

// Guest is a machine that was started.
type Guest struct {
	// VNG is the command line that started it.
	VNG []string

	cmd     *keeper.Cmd
	dir     string
	cancel  context.CancelFunc
	conn    chan net.Conn
	gone    chan struct{}
	err     error
	serial  *os.File
	stdin   *os.File
	cleanup sync.Once
}

// commandLineLimit is the longest kernel command line that x86 takes,
// COMMAND_LINE_SIZE in arch/x86/include/asm/setup.h. vng's own part is
// measured below vngShare.
const (
	commandLineLimit = 2048
	vngShare         = 700
)

// kernelArgs are what every guest's kernel is told, beside vng's own.
func kernelArgs(accel Accel) []string {
	args := []string{
		"rdinit=/init",
		"console=hvc0",
		"loglevel=4",
		// An oops ends the guest: what runs on after one proves nothing.
		"oops=panic",
		"panic=-1",
		// The markers must not be dropped by the limit for user space.
		"printk.devkmsg=on",
		"log_buf_len=4M",
	}
	if accel == TCG {
		// Without it each CPU measures how long a loop takes whenever it
		// comes up: 0.35 s of a boot with four. Emulated loops take any
		// time; with a clock of 2 GHz and HZ=250 this is the right order.
		args = append(args, "lpj=8000000")
	}
	return args
}

// Start boots a guest. Cancelling ctx kills it. The caller must call Stop.
func Start(ctx context.Context, spec Spec) (_ *Guest, err error) {
	args := append(kernelArgs(spec.Accel), spec.Append...)
	if n := len(strings.Join(args, " ")); n > commandLineLimit-vngShare {
		return nil, &fault.Error{
			Blame: fault.Configuration, Doing: "composing the kernel command line",
			Subject: fmt.Sprintf("%d bytes", n),
			Err:     fmt.Errorf("the kernel takes %d, of which vng needs up to %d", commandLineLimit, vngShare),
			Next:    "shorten append: in the vmconfig",
		}
	}
	g := &Guest{conn: make(chan net.Conn, 1), gone: make(chan struct{})}
	defer func() {
		if err != nil {
			g.remove()
		}
	}()
	if g.dir, err = runDir(); err != nil {
		return nil, err
	}
	trouble := func(doing string, err error) error {
		return &fault.Error{
			Blame: fault.Harness, Doing: doing, Subject: g.dir, Err: err,
			Next: "check free space and permissions of the folder for temporary files (TMPDIR)",
		}
	}

	// vng and QEMU split and unquote some of what they are given, so they
	// only ever see names without anything special in them.
	root := filepath.Join(g.dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, trouble("making the guest's root folder", err)
	}
	console, err := os.Create(spec.Console)
	if err != nil {
		return nil, trouble("creating the console log", err)
	}
	console.Close()
	if g.serial, err = os.Create(spec.Serial); err != nil {
		return nil, trouble("creating the serial log", err)
	}
	for name, target := range map[string]string{"kernel": spec.Kernel, "initrd": spec.Initrd, "console": spec.Console} {
		if target, err = filepath.Abs(target); err != nil {
			return nil, trouble("resolving a path", err)
		}
		if err := os.Symlink(target, filepath.Join(g.dir, name)); err != nil {
			return nil, trouble("linking into the run folder", err)
		}
	}
	socket := filepath.Join(g.dir, "agent")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, trouble("listening for the guest", err)
	}

	g.VNG = command(g.dir, spec, args)
	if _, err := exec.LookPath(g.VNG[0]); err != nil {
		listener.Close()
		return nil, &fault.Error{
			Blame: fault.Harness, Doing: "starting the guest", Subject: "vng", Err: err,
			Next: "run bin/setup, or bin/patchbay doctor to see all that is missing",
		}
	}
	// vng takes a degraded path unless all three descriptors are plain
	// files or pipes that can be opened again through /proc.
	stdin, w, err := os.Pipe()
	if err != nil {
		listener.Close()
		return nil, trouble("making a pipe", err)
	}
	g.stdin = w
	ctx, g.cancel = context.WithCancel(ctx)
	g.cmd = keeper.Command(ctx, g.VNG[0], g.VNG[1:]...)
	g.cmd.Dir = g.dir
	g.cmd.Env = append(environ(), "TMPDIR="+g.dir)
	g.cmd.Stdin, g.cmd.Stdout, g.cmd.Stderr = stdin, g.serial, g.serial
	g.cmd.Remove = []string{g.dir}
	err = g.cmd.Start()
	stdin.Close()
	if err != nil {
		listener.Close()
		g.cancel()
		return nil, trouble("starting vng", err)
	}
	go func() {
		conn, err := listener.AcceptUnix()
		listener.Close()
		if err == nil {
			g.conn <- conn
		}
		close(g.conn)
	}()
	go func() {
		g.err = g.cmd.Wait()
		listener.Close()
		close(g.gone)
	}()
	return g, nil
}

// environ is the environment without what would change vng's ways.
func environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "VIRTME") && !strings.HasPrefix(kv, "TMPDIR=") {
			env = append(env, kv)
		}
	}
	return env
}

// runDir makes a short, private folder: a socket's path has 108 bytes at most.
func runDir() (string, error) {
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if parent == "" || len(parent) > 60 || strings.ContainsAny(parent, " \t\n'\"\\,;:$`") {
			continue
		}
		if dir, err := os.MkdirTemp(parent, "patchbay-"); err == nil {
			return dir, nil
		}
	}
	return "", &fault.Error{
		Blame: fault.Harness, Doing: "making a run folder", Subject: os.TempDir(),
		Err:  errors.New("no writable folder with a short, plain path"),
		Next: "set TMPDIR to one, for example /tmp",
	}
}

// command composes the vng command line. vng composes QEMU's in turn: the
// ports are handed through, and our initrd, which comes last, replaces vng's.
func command(dir string, spec Spec, args []string) []string {
	at := func(name string) string { return filepath.Join(dir, name) }
	words := []string{
		"vng", "--run", at("kernel"), "--force-9p", "--root", at("root"),
		"--cpus", strconv.Itoa(spec.CPUs),
		"--memory", fmt.Sprintf("%dM", spec.Memory>>20),
		// The serial console then goes to vng's standard error: it is the
		// only one that speaks before virtio is up.
		"--verbose",
	}
	qemu := []string{
		"-initrd", at("initrd"),
		"-device", "virtio-serial-pci,id=patchbay,max_ports=4",
		"-chardev", "file,id=patchbay-console,path=" + at("console"),
		"-device", "virtconsole,bus=patchbay.0,chardev=patchbay-console",
		"-chardev", "socket,id=patchbay-agent,path=" + at("agent"),
		"-device", "virtserialport,bus=patchbay.0,chardev=patchbay-agent,name=" + wire.PortName,
	}
	if spec.Accel == TCG {
		words = append(words, "--disable-kvm")
		if spec.CPUs > 1 {
			qemu = append(qemu, "-accel", "tcg,thread=multi")
		}
	}
	for _, arg := range args {
		words = append(words, "--append", arg)
	}
	return append(words, "--qemu-opts="+strings.Join(qemu, " "), "--", "true")
}

// Accept returns the connection to the agent once QEMU has made it. It fails
// when the guest is gone first; Gone and Err then say more.
func (g *Guest) Accept(ctx context.Context) (net.Conn, error) {
	select {
	case conn, ok := <-g.conn:
		if !ok {
			return nil, net.ErrClosed
		}
		return conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Gone is closed when the whole chain from vng to QEMU has ended.
func (g *Guest) Gone() <-chan struct{} { return g.gone }

// QEMU returns the command line that vng composed, or nil while or after it
// does not run.
func (g *Guest) QEMU() []string {
	for _, pid := range keeper.Descendants(g.cmd.Process.Pid) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		words := strings.Split(string(bytes.TrimRight(data, "\x00")), "\x00")
		if strings.HasPrefix(filepath.Base(words[0]), "qemu-system-") {
			return words
		}
	}
	return nil
}

// Stop kills the guest if it still runs, waits until no process of it is left,
// and removes its run folder. It may be called more than once.
func (g *Guest) Stop() {
	g.cancel()
	<-g.gone
	g.remove()
}

func (g *Guest) remove() {
	g.cleanup.Do(func() {
		if g.stdin != nil {
			g.stdin.Close()
		}
		if g.serial != nil {
			g.serial.Close()
		}
		if g.dir != "" {
			os.RemoveAll(g.dir)
		}
	})
}
