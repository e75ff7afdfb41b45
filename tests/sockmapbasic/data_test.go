// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/sockets"
	"patchbay/tests/internal/subtest"
)

// skbVerdictShutdown checks that the peer's FIN wakes a socket in a map and
// reads as the end of the stream (C: test_sockmap_skb_verdict_shutdown).
func skbVerdictShutdown(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	attach.Map(t, objs.Rx, objs.StreamPass, ebpf.AttachSkSKBStreamVerdict)
	receiver, sender := sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	put(t, objs.Rx, 0, receiver)

	if err := unix.Shutdown(sender.FD(), unix.SHUT_WR); err != nil {
		t.Fatalf("shut down %s: %v", sender, err)
	}
	events := receiver.WaitEvents(t, unix.EPOLLIN)
	if len(events) != 1 || events[0].Events != unix.EPOLLIN {
		t.Fatalf("epoll reports %+v, want one EPOLLIN", events)
	}
	if got := receiver.Recv(t, 1, unix.MSG_DONTWAIT); len(got) != 0 {
		t.Fatalf("received %x, want the end of the stream", got)
	}
}

// skbVerdictFionread checks that FIONREAD counts what a passing program let
// through (C: test_sockmap_skb_verdict_fionread).
func skbVerdictFionread(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	attach.Map(t, objs.Rx, objs.StreamPass, ebpf.AttachSkSKBStreamVerdict)
	receiver, sender := sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	put(t, objs.Rx, 0, receiver)

	sender.Send(t, payload)
	receiver.WaitUnread(t, len(payload))
	if got := counter(t, objs.PassBytes); got != uint64(len(payload)) {
		t.Fatalf("the program saw %d bytes, want %d", got, len(payload))
	}
	wantBytes(t, receiver.Recv(t, len(payload), unix.MSG_DONTWAIT), payload)
	wantUnread(t, receiver, 0)
}

// skbVerdictFionreadOnDrop checks that FIONREAD does not count what a program
// dropped (C: test_sockmap_skb_verdict_fionread).
func skbVerdictFionreadOnDrop(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	attach.Map(t, objs.Rx, objs.SkbDrop, ebpf.AttachSkSKBStreamVerdict)
	receiver, sender := sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	put(t, objs.Rx, 0, receiver)

	sender.Send(t, payload)
	// The program runs with the socket locked and FIONREAD takes that lock:
	// once the program has seen the data, FIONREAD sees what became of it.
	waitCounter(t, objs.DropBytes, uint64(len(payload)))
	wantUnread(t, receiver, 0)
	_, _, err := unix.Recvfrom(receiver.FD(), make([]byte, 1), unix.MSG_DONTWAIT)
	wantErr(t, "receive what was dropped", err, unix.EAGAIN)
}

// skbVerdictPeek looks at data without taking it
// (C: test_sockmap_skb_verdict_peek).
func skbVerdictPeek(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	attach.Map(t, objs.Rx, objs.StreamPass, ebpf.AttachSkSKBStreamVerdict)
	peek(t, objs.Rx)
	if got := counter(t, objs.PassBytes); got != uint64(len(payload)) {
		t.Fatalf("the program saw %d bytes, want %d", got, len(payload))
	}
}

// skbVerdictPeekWithLink does so with a program that came in by updating a
// link; a program of another attach type must not
// (C: test_sockmap_skb_verdict_peek_with_link).
func skbVerdictPeekWithLink(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	l := attachLink(t, objs.Rx, objs.StreamPass, ebpf.AttachSkSKBStreamVerdict)
	if err := l.Update(objs.StreamPassClone); err != nil {
		t.Fatalf("update the link: %v", err)
	}
	wantErr(t, "update the link with a parser", l.Update(objs.StreamParse), unix.EINVAL)
	wantAttached(t, objs.Rx, ebpf.AttachSkSKBStreamVerdict, objs.StreamPassClone)

	peek(t, objs.Rx)
	if got := counter(t, objs.CloneBytes); got != uint64(len(payload)) {
		t.Fatalf("the link's new program saw %d bytes, want %d", got, len(payload))
	}
	if got := counter(t, objs.PassBytes); got != 0 {
		t.Fatalf("the link's old program saw %d bytes, want none", got)
	}
}

// peek sends to a socket in m: MSG_PEEK must leave the data there, and a plain
// receive must take it (C: test_sockmap_skb_verdict_peek_helper).
func peek(t *testing.T, m *ebpf.Map) {
	t.Helper()
	receiver, sender := sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	put(t, m, 0, receiver)

	sender.Send(t, payload)
	wantBytes(t, receiver.Recv(t, len(payload), unix.MSG_PEEK), payload)
	wantUnread(t, receiver, len(payload))
	wantBytes(t, receiver.Recv(t, len(payload), 0), payload)
	wantUnread(t, receiver, 0)
}

// wantUnread checks FIONREAD at once, where it must already be right.
func wantUnread(t *testing.T, s *sockets.Socket, want int) {
	t.Helper()
	if got := s.Unread(t); got != want {
		t.Fatalf("FIONREAD of %s is %d, want %d", s, got, want)
	}
}
