// SPDX-License-Identifier: GPL-2.0-only

package sockets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPairsDeliver(t *testing.T) {
	pairs := map[string]func(*testing.T) (*Socket, *Socket){
		"tcp":            func(t *testing.T) (*Socket, *Socket) { return Pair(t, unix.AF_INET, unix.SOCK_STREAM) },
		"udp":            func(t *testing.T) (*Socket, *Socket) { return Pair(t, unix.AF_INET, unix.SOCK_DGRAM) },
		"unix stream":    func(t *testing.T) (*Socket, *Socket) { return UnixPair(t, unix.SOCK_STREAM) },
		"unix dgram":     func(t *testing.T) (*Socket, *Socket) { return UnixPair(t, unix.SOCK_DGRAM) },
		"unix seqpacket": func(t *testing.T) (*Socket, *Socket) { return UnixPair(t, unix.SOCK_SEQPACKET) },
	}
	if haveIPv6(t) {
		pairs["tcp6"] = func(t *testing.T) (*Socket, *Socket) { return Pair(t, unix.AF_INET6, unix.SOCK_STREAM) }
		pairs["udp6"] = func(t *testing.T) (*Socket, *Socket) { return Pair(t, unix.AF_INET6, unix.SOCK_DGRAM) }
	}
	for name, pair := range pairs {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if a.Cookie(t) == b.Cookie(t) {
				t.Errorf("%s and %s have the same cookie", a, b)
			}
			for _, way := range []struct{ from, to *Socket }{{a, b}, {b, a}} {
				want := []byte("from " + way.from.String())
				way.from.Send(t, want)
				way.to.WaitUnread(t, len(want))
				for _, flags := range []int{unix.MSG_PEEK, unix.MSG_DONTWAIT} {
					if got := way.to.Recv(t, 100, flags); !bytes.Equal(got, want) {
						t.Errorf("flags %#x: received %q, want %q", flags, got, want)
					}
				}
				if got := way.to.Unread(t); got != 0 {
					t.Errorf("%d bytes unread, want 0", got)
				}
			}
		})
	}
}

// haveIPv6 reports whether the machine has an IPv6 loopback address.
func haveIPv6(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Logf("without IPv6: %v", err)
		return false
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, loopbackAddr(t, unix.AF_INET6)); err != nil {
		t.Logf("without IPv6: %v", err)
		return false
	}
	return true
}

func TestPairIsWhatASockmapTakes(t *testing.T) {
	accepted, connected := Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	for _, s := range []*Socket{accepted, connected} {
		protocol, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err != nil {
			t.Fatal(err)
		}
		if protocol != unix.IPPROTO_TCP {
			t.Errorf("%s has protocol %d, want TCP", s, protocol)
		}
		flags, err := unix.FcntlInt(uintptr(s.FD()), unix.F_GETFL, 0)
		if err != nil {
			t.Fatal(err)
		}
		if flags&unix.O_NONBLOCK != 0 {
			t.Errorf("%s does not block", s)
		}
		flags, err = unix.FcntlInt(uintptr(s.FD()), unix.F_GETFD, 0)
		if err != nil {
			t.Fatal(err)
		}
		if flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s would leak into other programs", s)
		}
	}
	nonblocking, _ := Pair(t, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
	if _, _, err := unix.Recvfrom(nonblocking.FD(), make([]byte, 1), 0); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("non-blocking receive: %v, want EAGAIN", err)
	}
}

func TestRepairedTCP(t *testing.T) {
	s := New(t, unix.AF_INET, unix.SOCK_STREAM)
	err := repairConnect(s.FD())
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_NET_ADMIN; every sub-test that uses it runs in the guest")
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := unix.GetsockoptTCPInfo(s.FD(), unix.SOL_TCP, unix.TCP_INFO)
	if err != nil {
		t.Fatal(err)
	}
	if info.State != unix.BPF_TCP_ESTABLISHED {
		t.Errorf("TCP state %d, want established", info.State)
	}
}

func TestCloseOnce(t *testing.T) {
	a, b := UnixPair(t, unix.SOCK_STREAM)
	old := a.FD()
	a.Close(t)
	if a.FD() != -1 {
		t.Errorf("descriptor %d after Close, want -1", a.FD())
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read after the peer's close: %v, want EOF", err)
	}
	// A second Close must not hit whoever has the number now.
	other, _ := UnixPair(t, unix.SOCK_STREAM)
	if other.FD() != old {
		t.Fatalf("descriptor %d is not used again", old)
	}
	a.Close(t)
	other.Cookie(t)
}

func TestStreamLargerThanTheBuffers(t *testing.T) {
	a, b := Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	sent := make(chan error, 1)
	go func() {
		_, err := a.Write(want)
		sent <- err
	}()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(b, got); err != nil {
		t.Fatalf("%v after %d bytes", err, n)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("not the bytes that were sent")
	}
}

// short makes every deadline 100 ms.
func short(t *testing.T) { t.Setenv("PATCHBAY_SCALE", "0.01") }

func TestReadEndsUnderSignals(t *testing.T) {
	short(t)
	a, _ := UnixPair(t, unix.SOCK_STREAM)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop := unix.Gettid(), make(chan struct{})
	done := make(chan int)
	go func() {
		sent := 0
		for {
			select {
			case <-stop:
				done <- sent
				return
			case <-time.After(5 * time.Millisecond):
				// The runtime's own signal for preemption.
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
				sent++
			}
		}
	}()
	start := time.Now()
	_, err := a.Read(make([]byte, 1))
	took := time.Since(start)
	close(stop)
	if sent := <-done; sent < 3 {
		t.Fatalf("only %d signals were sent", sent)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read with nothing to read: %v, want a deadline", err)
	}
	if took < Deadline() {
		t.Errorf("gave up after %v, before the deadline of %v", took, Deadline())
	}
}

// tb is a test that is expected to fail.
type tb struct {
	testing.TB
	message string
}

func (f *tb) Helper() {}

func (f *tb) Fatal(args ...any) {
	f.message = fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *tb) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

// failure runs check and returns what it failed with.
func failure(t *testing.T, check func(testing.TB)) string {
	t.Helper()
	f := &tb{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(f)
	}()
	<-done
	return f.message
}

func TestWaitsFail(t *testing.T) {
	short(t)
	a, b := Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	b.Send(t, []byte("12345"))
	a.WaitUnread(t, 5)
	for name, c := range map[string]struct {
		check func(testing.TB)
		want  string
	}{
		"fionread": {func(t testing.TB) { a.WaitUnread(t, 6) }, "FIONREAD of inet stream (fd " + fmt.Sprint(a.FD()) + ") is 5 after 100ms, want 6"},
		"recv":     {func(t testing.TB) { b.Recv(t, 1, 0) }, "i/o timeout"},
		"poll":     {func(t testing.TB) { b.Recv(t, 1, unix.MSG_DONTWAIT) }, "not readable after 100ms"},
		"epoll":    {func(t testing.TB) { b.WaitEvents(t, unix.EPOLLIN) }, "nothing happened in 100ms"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			if got := failure(t, c.check); !strings.Contains(got, c.want) {
				t.Errorf("failed with %q, want %q", got, c.want)
			}
			if took := time.Since(start); took < Deadline() {
				t.Errorf("gave up after %v, before the deadline of %v", took, Deadline())
			}
		})
	}
}

func TestWaitEvents(t *testing.T) {
	a, b := UnixPair(t, unix.SOCK_STREAM)
	b.Send(t, []byte("1"))
	events := a.WaitEvents(t, unix.EPOLLIN|unix.EPOLLRDHUP)
	if len(events) != 1 || events[0].Events != unix.EPOLLIN || int(events[0].Fd) != a.FD() {
		t.Errorf("got %+v, want EPOLLIN of descriptor %d", events, a.FD())
	}
	b.Close(t)
	events = a.WaitEvents(t, unix.EPOLLRDHUP)
	if len(events) != 1 || events[0].Events&unix.EPOLLRDHUP == 0 {
		t.Errorf("got %+v, want EPOLLRDHUP", events)
	}
}
