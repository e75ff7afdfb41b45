// SPDX-License-Identifier: GPL-2.0-only

// Package sockets makes the sockets that sockmap tests need, as plain
// descriptors.
//
// Package net is of no use here: its listeners are MPTCP where the kernel has
// it, and MPTCP sockets cannot enter a sockmap; its sockets are non-blocking
// behind a poller, while the tests are about what the kernel itself does.
//
// Every call is retried on EINTR, and every wait ends after [Deadline]. Doc
// comments name the helper of the kernel's own selftests (sockmap_helpers.h)
// that does the same in C.
package sockets

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/tests/internal/subtest"
)

// fionread is FIONREAD, under the name that package unix has for it.
const fionread = unix.TIOCINQ

// pollInterval is how often a state is looked at that no call can wait for.
const pollInterval = time.Millisecond

// Deadline is the limit of every wait of this package, scaled to the guest
// (C: IO_TIMEOUT_SEC).
func Deadline() time.Duration { return subtest.Scale(10 * time.Second) }

// A Socket is a blocking socket whose waits end after [Deadline]. It belongs
// to the test that made it and is closed at its end at the latest.
type Socket struct {
	fd   int
	name string
}

// New makes a socket of a family (unix.AF_*) and type (unix.SOCK_*, which may
// carry unix.SOCK_NONBLOCK) (C: xsocket).
func New(t testing.TB, family, sotype int) *Socket {
	t.Helper()
	fd, err := unix.Socket(family, sotype|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socket(%s): %v", describe(family, sotype), err)
	}
	return adopt(t, fd, describe(family, sotype))
}

// adopt takes over fd and bounds its waits.
func adopt(t testing.TB, fd int, name string) *Socket {
	t.Helper()
	s := &Socket{fd: fd, name: name}
	t.Cleanup(func() { s.Close(t) })
	limit := unix.NsecToTimeval(Deadline().Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			t.Fatalf("bound the waits of %s: %v", name, err)
		}
	}
	return s
}

// Close closes the socket; a second call does nothing. It returns when the
// kernel has taken the socket out of all sockmaps (C: xclose).
func (s *Socket) Close(t testing.TB) {
	t.Helper()
	if s.fd < 0 {
		return
	}
	fd := s.fd
	s.fd = -1
	// Linux releases the descriptor also when close returns EINTR.
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) {
		t.Errorf("close %s: %v", s.name, err)
	}
}

// FD is the descriptor, -1 after Close. The Socket keeps owning it.
func (s *Socket) FD() int { return s.fd }

// Value is the descriptor as the value of a map update. It has 8 bytes because
// only a map with such values can be looked up, for the cookie.
func (s *Socket) Value() uint64 { return uint64(s.fd) }

// String names the kind of socket and its descriptor.
func (s *Socket) String() string { return fmt.Sprintf("%s (fd %d)", s.name, s.fd) }

// Cookie is the socket's cookie (SO_COOKIE): what a map lookup returns.
func (s *Socket) Cookie(t testing.TB) uint64 {
	t.Helper()
	cookie, err := unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		t.Fatalf("cookie of %s: %v", s, err)
	}
	return cookie
}

// Write sends all of b, or returns why not. Safe to call from any goroutine.
func (s *Socket) Write(b []byte) (int, error) {
	sent := 0
	for {
		n, err := retry(func() (int, error) { return unix.SendmsgN(s.fd, b[sent:], nil, nil, unix.MSG_NOSIGNAL) })
		if err != nil {
			return sent, s.explain("send", err)
		}
		if sent += n; sent >= len(b) {
			return sent, nil
		}
	}
}

// Read receives once, into b. At the end of a stream it returns io.EOF, and
// after [Deadline] an error that is os.ErrDeadlineExceeded. Safe to call from
// any goroutine.
func (s *Socket) Read(b []byte) (int, error) {
	n, err := s.recv(b, 0)
	if err == nil && n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// Send sends all of b (C: xsend).
func (s *Socket) Send(t testing.TB, b []byte) {
	t.Helper()
	if n, err := s.Write(b); err != nil {
		t.Fatalf("%v after %d of %d bytes", err, n, len(b))
	}
}

// Recv receives once, up to size bytes; empty means the end of the stream.
// Without unix.MSG_DONTWAIT in flags the kernel does the waiting in recv
// itself; with it, poll waits and recv must then have something
// (C: recv and recv_timeout).
func (s *Socket) Recv(t testing.TB, size, flags int) []byte {
	t.Helper()
	if flags&unix.MSG_DONTWAIT != 0 {
		s.waitReadable(t)
	}
	b := make([]byte, size)
	n, err := s.recv(b, flags)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

func (s *Socket) recv(b []byte, flags int) (int, error) {
	n, err := retry(func() (int, error) {
		n, _, err := unix.Recvfrom(s.fd, b, flags)
		return n, err
	})
	if err != nil {
		return 0, s.explain("recv", err)
	}
	return n, nil
}

// waitReadable waits until poll reports the socket readable (C: poll_read).
func (s *Socket) waitReadable(t testing.TB) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	n, err := retry(func() (int, error) { return unix.Poll(fds, int(Deadline().Milliseconds())) })
	if err != nil {
		t.Fatalf("poll %s: %v", s, err)
	}
	if n == 0 {
		t.Fatalf("poll %s: not readable after %v", s, Deadline())
	}
}

// WaitEvents waits by epoll until one of events (unix.EPOLL*) happens, and
// returns what epoll reports (C: epoll_wait).
func (s *Socket) WaitEvents(t testing.TB, events uint32) []unix.EpollEvent {
	t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatalf("epoll_create1: %v", err)
	}
	defer unix.Close(epoll)
	event := unix.EpollEvent{Events: events, Fd: int32(s.fd)}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, s.fd, &event); err != nil {
		t.Fatalf("watch %s: %v", s, err)
	}
	happened := make([]unix.EpollEvent, 10)
	n, err := retry(func() (int, error) {
		return unix.EpollWait(epoll, happened, int(Deadline().Milliseconds()))
	})
	if err != nil {
		t.Fatalf("epoll_wait for %s: %v", s, err)
	}
	if n == 0 {
		t.Fatalf("epoll_wait for %s: nothing happened in %v", s, Deadline())
	}
	return happened[:n]
}

// Unread is the number of bytes that FIONREAD reports right now.
func (s *Socket) Unread(t testing.TB) int {
	t.Helper()
	n, err := unix.IoctlGetInt(s.fd, fionread)
	if err != nil {
		t.Fatalf("ioctl(%s, FIONREAD): %v", s, err)
	}
	return n
}

// WaitUnread waits until FIONREAD reports want bytes. Data arrives after send
// has returned, so a single look would be a race.
func (s *Socket) WaitUnread(t testing.TB, want int) {
	t.Helper()
	got := -1
	if !Eventually(func() bool { got = s.Unread(t); return got == want }) {
		t.Fatalf("FIONREAD of %s is %d after %v, want %d", s, got, Deadline(), want)
	}
}

// Eventually reports whether condition came true within [Deadline].
func Eventually(condition func() bool) bool {
	for deadline := time.Now().Add(Deadline()); ; time.Sleep(pollInterval) {
		if condition() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// explain turns the EAGAIN of a blocking socket into what it means.
func (s *Socket) explain(call string, err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%s(%s): %w (%w)", call, s, err, os.ErrDeadlineExceeded)
	}
	return fmt.Errorf("%s(%s): %w", call, s, err)
}

// retry repeats call, whose own wait is bounded by [Deadline], when a signal
// interrupts it; the Go runtime sends itself many. An interrupted wait starts
// afresh, so all of them together are bounded too.
func retry[T any](call func() (T, error)) (T, error) {
	deadline := time.Now().Add(Deadline())
	for {
		v, err := call()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
		if time.Now().After(deadline) {
			return v, os.ErrDeadlineExceeded
		}
	}
}

// describe names a kind of socket for messages.
func describe(family, sotype int) string {
	families := map[int]string{
		unix.AF_INET: "inet", unix.AF_INET6: "inet6", unix.AF_UNIX: "unix", unix.AF_VSOCK: "vsock",
	}
	types := map[int]string{
		unix.SOCK_STREAM: "stream", unix.SOCK_DGRAM: "dgram", unix.SOCK_SEQPACKET: "seqpacket",
	}
	kind := func(names map[int]string, n int) string {
		if name, ok := names[n]; ok {
			return name
		}
		return fmt.Sprint(n)
	}
	return kind(families, family) + " " + kind(types, kindOf(sotype))
}

// kindOf takes the flags out of a socket type (C: SOCK_TYPE_MASK).
func kindOf(sotype int) int { return sotype &^ (unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC) }
