// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/sockets"
	"patchbay/tests/internal/subtest"
)

// createUpdateFree puts sockets into a map and frees the map: that must take
// the sockets out and leave them as they were
// (C: test_sockmap_create_update_free).
func createUpdateFree(typ ebpf.MapType) func(*testing.T) {
	return func(t *testing.T) {
		var objs bpf.VerdictObjects
		subtest.Load(t, bpf.LoadVerdictObjects, &objs)
		repaired := sockets.RepairedTCP(t)
		receiver, sender := sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)

		m := newMap(t, typ)
		// In the map nothing can be sent: that shows when the free is done.
		attach.Map(t, m, objs.MsgDrop, ebpf.AttachSkMsgVerdict)
		put(t, m, 0, repaired)
		put(t, m, 1, sender)
		wantSocket(t, m, 0, repaired)
		wantSocket(t, m, 1, sender)
		_, err := sender.Write(payload)
		wantErr(t, "send from within the map", err, unix.EACCES)

		if err := m.Close(); err != nil {
			t.Fatalf("free the map: %v", err)
		}

		if !sockets.Eventually(func() bool {
			_, err = sender.Write(payload)
			return !errors.Is(err, unix.EACCES)
		}) {
			t.Fatalf("the freed map's program still drops data after %v", sockets.Deadline())
		}
		if err != nil {
			t.Fatalf("send after the free: %v", err)
		}
		wantBytes(t, receiver.Recv(t, len(payload), 0), payload)
		receiver.Send(t, payload)
		wantBytes(t, sender.Recv(t, len(payload), 0), payload)

		info, err := unix.GetsockoptTCPInfo(repaired.FD(), unix.SOL_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatalf("TCP_INFO after the free: %v", err)
		}
		if info.State != unix.BPF_TCP_ESTABLISHED {
			t.Fatalf("TCP state %d after the free, want established", info.State)
		}
		again := newMap(t, typ)
		put(t, again, 0, repaired)
		wantSocket(t, again, 0, repaired)
		if err := again.Delete(uint32(0)); err != nil {
			t.Fatalf("delete after the free: %v", err)
		}
		wantNoSocket(t, again, 0)
	}
}

// newMap makes a map of two sockets that is closed with the test.
func newMap(t *testing.T, typ ebpf.MapType) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: typ, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		t.Fatalf("create a %s: %v", typ, err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close %s: %v", m, err)
		}
	})
	return m
}

// unconnectedUnix adds unix sockets without a peer: a stream socket must be
// refused, a datagram socket accepted (C: test_sockmap_unconnected_unix).
func unconnectedUnix(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	stream := sockets.New(t, unix.AF_UNIX, unix.SOCK_STREAM)
	dgram := sockets.New(t, unix.AF_UNIX, unix.SOCK_DGRAM)

	wantErr(t, "add an unconnected stream socket",
		objs.Rx.Update(uint32(0), stream.Value(), ebpf.UpdateAny), unix.EOPNOTSUPP)
	wantNoSocket(t, objs.Rx, 0)
	replace(t, objs.Rx, 0, dgram)
	wantSocket(t, objs.Rx, 0, dgram)
}

// fourKinds makes a socket of each kind that a sockmap takes.
func fourKinds(t *testing.T) []*sockets.Socket {
	t.Helper()
	stream, _ := sockets.UnixPair(t, unix.SOCK_STREAM)
	return []*sockets.Socket{
		stream,
		sockets.New(t, unix.AF_UNIX, unix.SOCK_DGRAM),
		sockets.Loopback(t, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK),
		sockets.RepairedTCP(t),
	}
}

// manyEntries puts each socket under two keys of one map; all can be taken
// out again (C: test_sockmap_many_socket).
func manyEntries(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	socks := fourKinds(t)
	for i, s := range socks {
		replace(t, objs.Rx, uint32(2*i), s)
		replace(t, objs.Rx, uint32(2*i+1), s)
	}
	for i, s := range socks {
		wantSocket(t, objs.Rx, uint32(2*i), s)
		wantSocket(t, objs.Rx, uint32(2*i+1), s)
	}
	for i := len(socks) - 1; i >= 0; i-- {
		remove(t, objs.Rx, uint32(2*i+1))
		wantSocket(t, objs.Rx, uint32(2*i), socks[i])
		remove(t, objs.Rx, uint32(2*i))
	}
}

// manyMaps puts each socket into two maps; all can be taken out again
// (C: test_sockmap_many_maps).
func manyMaps(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	socks := fourKinds(t)
	for i, s := range socks {
		replace(t, objs.Rx, uint32(2*i), s)
		replace(t, objs.Tx, uint32(2*i+1), s)
	}
	for i, s := range socks {
		wantSocket(t, objs.Rx, uint32(2*i), s)
		wantSocket(t, objs.Tx, uint32(2*i+1), s)
	}
	for i := len(socks) - 1; i >= 0; i-- {
		remove(t, objs.Tx, uint32(2*i+1))
		wantSocket(t, objs.Rx, uint32(2*i), socks[i])
		remove(t, objs.Rx, uint32(2*i))
	}
}

// sameSocketReplace updates an entry twice with the same socket. The entry
// must stay tied to the socket: closing the socket takes it out of the map,
// so deleting it afterwards must fail (C: test_sockmap_same_sock, as it is
// since kernel 7.3).
func sameSocketReplace(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	const key = uint32(0)
	socks := fourKinds(t)
	for _, s := range socks {
		replace(t, objs.Rx, key, s)
		replace(t, objs.Rx, key, s)
		wantSocket(t, objs.Rx, key, s)
	}
	for i := len(socks) - 1; i >= 0; i-- {
		s := socks[i]
		replace(t, objs.Rx, key, s)
		replace(t, objs.Rx, key, s)
		s.Close(t)
		wantNoSocket(t, objs.Rx, key)
		wantErr(t, fmt.Sprintf("delete the entry of the closed %s", s), objs.Rx.Delete(key), unix.EINVAL)
	}
}
