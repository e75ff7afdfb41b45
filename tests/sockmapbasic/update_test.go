// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/sockets"
)

// unsafeUpdate is the verifier's reason for refusing to update a sockmap
// (may_update_sockmap in kernel/bpf/verifier.c).
const unsafeUpdate = "cannot update sockmap in this context"

// updateFromTC has a tc program copy a socket from one map to another
// (C: test_sockmap_update). Newer kernels must refuse that program.
func updateFromTC(typ ebpf.MapType) func(*testing.T) {
	return func(t *testing.T) {
		var objs bpf.TcUpdateObjects
		if err := bpf.LoadTcUpdateObjects(&objs, nil); err != nil {
			if !errors.Is(err, errors.ErrUnsupported) && refusesTCUpdate(t) {
				wantVerifierReason(t, err, unsafeUpdate)
				return
			}
			t.Fatalf("load BPF objects: %+v", err)
		}
		t.Cleanup(func() {
			if err := objs.Close(); err != nil {
				t.Errorf("close BPF objects: %v", err)
			}
		})
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

// refusesTCUpdate reports whether this kernel may refuse the tc program. All up
// to 6.12 have to load it.
func refusesTCUpdate(t *testing.T) bool {
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
	var objs bpf.UnsafeUpdateObjects
	err := bpf.LoadUnsafeUpdateObjects(&objs, nil)
	if err == nil {
		objs.Close()
	}
	wantVerifierReason(t, err, unsafeUpdate)
}
