// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"testing"

	"github.com/cilium/ebpf"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/sockets"
	"patchbay/tests/internal/subtest"
)

// copySockMap copies a sockmap with one empty entry (C: test_sockmap_copy).
// The iterator visits the empty entry too, and removes its key from the copy.
func copySockMap(t *testing.T) {
	var objs bpf.IteratorObjects
	subtest.Load(t, bpf.LoadIteratorObjects, &objs)
	entries := objs.SockMap.MaxEntries()
	stale := entries - 1
	put(t, objs.Dst, stale, sockets.RepairedTCP(t))
	copyAll(t, &objs, objs.SockMap, entries-1, entries)
	wantNoSocket(t, objs.Dst, stale)
}

// copySockHash copies a sockhash that has room for one more
// (C: test_sockmap_copy). The iterator visits only what is there.
func copySockHash(t *testing.T) {
	var objs bpf.IteratorObjects
	subtest.Load(t, bpf.LoadIteratorObjects, &objs)
	entries := objs.SockHash.MaxEntries()
	copyAll(t, &objs, objs.SockHash, entries-1, entries-1)
	wantNoSocket(t, objs.Dst, entries-1)
}

// copyAll fills src with a number of sockets, copies them by the iterator, and
// checks how many elements that visited and that each socket was copied.
func copyAll(t *testing.T, objs *bpf.IteratorObjects, src *ebpf.Map, socks, elems uint32) {
	t.Helper()
	var all []*sockets.Socket
	for key := range socks {
		s := sockets.RepairedTCP(t)
		put(t, src, key, s)
		all = append(all, s)
	}
	attach.Iterate(t, objs.Copy, src)
	for _, check := range []struct {
		v    *ebpf.Variable
		want uint32
	}{{objs.Elems, elems}, {objs.Socks, socks}} {
		var got uint32
		if err := check.v.Get(&got); err != nil {
			t.Fatalf("read %s: %v", check.v, err)
		}
		if got != check.want {
			t.Fatalf("%s is %d, want %d", check.v, got, check.want)
		}
	}
	for key, s := range all {
		wantSocket(t, src, uint32(key), s)
		wantSocket(t, objs.Dst, uint32(key), s)
	}
}
