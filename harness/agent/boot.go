// SPDX-License-Identifier: MIT

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/wire"
)

// mount is one file system of the guest.
type mount struct {
	kind, dir string
	flags     uintptr
	// optional file systems are missing from some kernels; a test that needs
	// one says so itself.
	optional bool
}

var mounts = []mount{
	{kind: "proc", dir: "/proc"},
	{kind: "sysfs", dir: "/sys"},
	{kind: "devtmpfs", dir: "/dev"},
	{kind: "devpts", dir: "/dev/pts", optional: true},
	{kind: "tmpfs", dir: "/dev/shm", optional: true},
	{kind: "tmpfs", dir: "/tmp"},
	{kind: "tmpfs", dir: "/run"},
	{kind: "bpf", dir: "/sys/fs/bpf", optional: true},
	{kind: "cgroup2", dir: "/sys/fs/cgroup", optional: true},
	{kind: "debugfs", dir: "/sys/kernel/debug", optional: true},
	{kind: "tracefs", dir: "/sys/kernel/tracing", optional: true},
}

// Boot makes a usable machine out of a kernel that has just started this
// process as PID 1, and opens the port to the host. Without a port there is
// nobody to tell, so only that is an error; all else goes into Trouble.
func Boot() (*os.File, Machine, error) {
	var m Machine
	for _, fs := range mounts {
		if err := os.MkdirAll(fs.dir, 0o755); err != nil && !fs.optional {
			m.Trouble = append(m.Trouble, fmt.Sprintf("making %s: %v", fs.dir, err))
			continue
		}
		err := unix.Mount(fs.kind, fs.dir, fs.kind, fs.flags, "")
		// CONFIG_DEVTMPFS_MOUNT may have been quicker.
		if err != nil && !errors.Is(err, unix.EBUSY) && !fs.optional {
			m.Trouble = append(m.Trouble, fmt.Sprintf("mounting %s: %v", fs.dir, err))
		}
	}
	if err := loopbackUp(); err != nil {
		m.Trouble = append(m.Trouble, fmt.Sprintf("bringing lo up: %v", err))
	}
	unlimited := &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, unlimited); err != nil {
		m.Trouble = append(m.Trouble, fmt.Sprintf("raising the locked memory limit: %v", err))
	}

	log, err := openLog()
	if err != nil {
		return nil, m, err
	}
	m.Log = log
	m.Hello = describe()
	m.Settle = settle
	m.Sweep = sweep
	port, err := openPort()
	return port, m, err
}

// Halt ends the guest. QEMU is started so that a restart makes it exit, and a
// restart needs no ACPI.
func Halt() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// describe fills the hello.
func describe() wire.GuestHello {
	var h wire.GuestHello
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Release = unix.ByteSliceToString(uts.Release[:])
	}
	h.CPUs = countCPUs("online")
	h.Possible = countCPUs("possible")
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) == nil {
		h.Uptime = time.Duration(now.Nano())
	}
	return h
}

// countCPUs counts a list like "0-3,5" of /sys/devices/system/cpu.
func countCPUs(list string) int {
	data, err := os.ReadFile(filepath.Join("/sys/devices/system/cpu", list))
	if err != nil {
		return 0
	}
	return parseCPUList(string(data))
}

func parseCPUList(list string) int {
	count := 0
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return 0
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil || b < a {
				return 0
			}
		}
		count += b - a + 1
	}
	return count
}

// portWait bounds the wait for the port. The kernel makes it in a work item
// that answers the device's control queue, so it may come after PID 1.
const portWait = 10 * time.Second

// openPort opens the port to the host. There is no udev: the names are in
// sysfs, the nodes in devtmpfs.
func openPort() (*os.File, error) {
	for begin := time.Now(); time.Since(begin) < portWait; time.Sleep(2 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, path := range names {
			name, err := os.ReadFile(path)
			if err != nil || string(bytes.TrimSpace(name)) != wire.PortName {
				continue
			}
			return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(path))), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no virtio-serial port named %s within %v: is CONFIG_VIRTIO_CONSOLE on?", wire.PortName, portWait)
}

// kernelLog is /dev/kmsg, opened once to read and once to write.
type kernelLog struct{ in, out int }

func openLog() (*kernelLog, error) {
	in, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/kmsg to read: %w", err)
	}
	out, err := unix.Open("/dev/kmsg", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/kmsg to write: %w", err)
	}
	return &kernelLog{in, out}, nil
}

func (l *kernelLog) Read(p []byte) (int, error)  { return unix.Read(l.in, p) }
func (l *kernelLog) Write(p []byte) (int, error) { return unix.Write(l.out, p) }

// settle gives the kernel time to finish what ended programs set off: sockets,
// maps and programs are freed after RCU grace periods, from work items, and a
// complaint about that belongs to this run. membarrier's global command waits
// for a grace period; the work items that follow it can only be given time.
func settle() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL, uapi/linux/membarrier.h
	for range 2 {
		_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	}
	time.Sleep(50 * time.Millisecond)
}

// sweep kills and reaps everything but PID 1.
func sweep() {
	_ = unix.Kill(-1, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}
