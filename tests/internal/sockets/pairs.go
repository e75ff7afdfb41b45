// SPDX-License-Identifier: GPL-2.0-only

package sockets

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// repairOffNoProbes ends repair mode without sending window probes
// (TCP_REPAIR_OFF_NO_WP in include/uapi/linux/tcp.h).
const repairOffNoProbes = -1

// RepairedTCP makes a TCP socket that is established although nobody is at the
// other end: it connects in repair mode. That needs CAP_NET_ADMIN
// (C: connected_socket_v4).
func RepairedTCP(t testing.TB) *Socket {
	t.Helper()
	s := New(t, unix.AF_INET, unix.SOCK_STREAM)
	if err := repairConnect(s.fd); err != nil {
		t.Fatal(err)
	}
	return s
}

func repairConnect(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, 1); err != nil {
		return fmt.Errorf("enter TCP repair mode: %w", err)
	}
	addr := &unix.SockaddrInet4{Port: 80, Addr: [4]byte{127, 0, 0, 1}}
	if err := connect(fd, addr); err != nil {
		return fmt.Errorf("connect in TCP repair mode: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, repairOffNoProbes); err != nil {
		return fmt.Errorf("leave TCP repair mode: %w", err)
	}
	return nil
}

// Loopback makes a socket bound to a free port of the loopback address, and
// listening unless it is a datagram socket. Families: unix.AF_INET, AF_INET6,
// AF_VSOCK (C: socket_loopback).
func Loopback(t testing.TB, family, sotype int) *Socket {
	t.Helper()
	s := New(t, family, sotype)
	if err := unix.Bind(s.fd, loopbackAddr(t, family)); err != nil {
		t.Fatalf("bind %s: %v", s, err)
	}
	if kindOf(sotype) == unix.SOCK_DGRAM {
		return s
	}
	if err := unix.Listen(s.fd, unix.SOMAXCONN); err != nil {
		t.Fatalf("listen on %s: %v", s, err)
	}
	return s
}

// Pair makes two sockets that are connected to each other over loopback. Of a
// stream pair the first is the accepted one (C: create_pair).
func Pair(t testing.TB, family, sotype int) (accepted, connected *Socket) {
	t.Helper()
	server := Loopback(t, family, sotype)
	client := New(t, family, sotype)
	if err := connect(client.fd, localAddr(t, server)); err != nil {
		t.Fatalf("connect %s: %v", client, err)
	}
	if kindOf(sotype) == unix.SOCK_DGRAM {
		if err := connect(server.fd, localAddr(t, client)); err != nil {
			t.Fatalf("connect %s: %v", server, err)
		}
		return server, client
	}
	defer server.Close(t)
	server.waitReadable(t)
	fd, err := retry(func() (int, error) {
		fd, _, err := unix.Accept4(server.fd, unix.SOCK_CLOEXEC|sotype&unix.SOCK_NONBLOCK)
		return fd, err
	})
	if err != nil {
		t.Fatalf("accept from %s: %v", server, err)
	}
	return adopt(t, fd, describe(family, sotype)), client
}

// UnixPair makes two connected unix sockets of a type (C: socketpair).
func UnixPair(t testing.TB, sotype int) (a, b *Socket) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, sotype|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair(%s): %v", describe(unix.AF_UNIX, sotype), err)
	}
	name := describe(unix.AF_UNIX, sotype)
	return adopt(t, fds[0], name), adopt(t, fds[1], name)
}

// connect connects fd. A connect that a signal interrupts goes on by itself,
// and so does one of a non-blocking socket: wait for the result of that one
// rather than call again (C: poll_connect).
func connect(fd int, addr unix.Sockaddr) error {
	err := unix.Connect(fd, addr)
	if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := retry(func() (int, error) { return unix.Poll(fds, int(Deadline().Milliseconds())) })
	if err != nil {
		return err
	}
	if n == 0 {
		return os.ErrDeadlineExceeded
	}
	result, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if result != 0 {
		return unix.Errno(result)
	}
	return nil
}

// loopbackAddr is the loopback address with any port (C: init_addr_loopback).
func loopbackAddr(t testing.TB, family int) unix.Sockaddr {
	t.Helper()
	switch family {
	case unix.AF_INET:
		return &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	case unix.AF_INET6:
		return &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
	case unix.AF_VSOCK:
		return &unix.SockaddrVM{CID: unix.VMADDR_CID_LOCAL, Port: unix.VMADDR_PORT_ANY}
	}
	t.Fatalf("family %d has no loopback address", family)
	return nil
}

func localAddr(t testing.TB, s *Socket) unix.Sockaddr {
	t.Helper()
	addr, err := unix.Getsockname(s.fd)
	if err != nil {
		t.Fatalf("getsockname of %s: %v", s, err)
	}
	return addr
}
