// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/sockets"
	"patchbay/tests/internal/subtest"
)

// unsafeUpdate is the verifier's reason for refusing to update a sockmap
// (may_update_sockmap in kernel/bpf/verifier.c).
const unsafeUpdate = "cannot update sockmap in this context"

// updateFromTC has a tc program copy a socket from one map to another
// (C: test_sockmap_update). Newer kernels must refuse that program.
func updateFromTC(typ ebpf.MapType) func(*testing.T) {
	return func(t *testing.T) {
		if mayRefuseTCUpdate(t) {
			if err := tryLoad(bpf.LoadTcUpdate); err != nil {
				wantVerifierReason(t, err, unsafeUpdate)
				return
			}
		}
		var objs bpf.TcUpdateObjects
		subtest.Load(t, bpf.LoadTcUpdateObjects, &objs)
		program, dst := objs.CopyToMap, objs.DstMap
		if typ == ebpf.SockHash {
			program, dst = objs.CopyToHash, objs.DstHash
		}
		s := sockets.RepairedTCP(t)
		put(t, objs.Src, 0, s)
		wantNoSocket(t, dst, 0)

		// An Ethernet header is the least that a tc program runs on.
		verdict, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
		if err != nil {
			t.Fatalf("run %s: %v", program, err)
		}
		if verdict != skPass {
			t.Fatalf("%s could not copy the socket: it returned %d, want %d", program, verdict, skPass)
		}
		wantSocket(t, objs.Src, 0, s)
		wantSocket(t, dst, 0, s)
	}
}

// mayRefuseTCUpdate reports whether this kernel may refuse the tc program. All
// up to 6.12 have to load it.
func mayRefuseTCUpdate(t *testing.T) bool {
	t.Helper()
	version, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatalf("kernel version: %v", err)
	}
	return version>>8 > 6<<8|12
}

// updateInUnsafeContext loads a program that would update a map with a locked
// socket (C: test_sockmap_invalid_update).
func updateInUnsafeContext(t *testing.T) {
	wantVerifierReason(t, tryLoad(bpf.LoadUnsafeUpdate), unsafeUpdate)
}

// tryLoad loads all programs and maps of a generated spec and closes them.
func tryLoad(spec func() (*ebpf.CollectionSpec, error)) error {
	loaded, err := spec()
	if err != nil {
		return err
	}
	collection, err := ebpf.NewCollection(loaded)
	if err != nil {
		return err
	}
	collection.Close()
	return nil
}
