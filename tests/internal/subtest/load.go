// SPDX-License-Identifier: GPL-2.0-only

package subtest

import (
	"testing"

	"github.com/cilium/ebpf"
)

// Load fills objs, a struct that bpf2go generated, by the loader that came with
// it, and closes the objects at the end of t (C: SKELETON__open_and_load).
//
// It also empties objs then. A map whose variables were in use stays in the
// kernel until package ebpf unmaps its memory, which the garbage collector
// decides, and t holds on to everything that its cleanups refer to.
func Load[T any, P interface {
	*T
	Close() error
}](t testing.TB, loader func(any, *ebpf.CollectionOptions) error, objs P) {
	t.Helper()
	if err := loader(objs, nil); err != nil {
		t.Fatalf("load BPF objects: %+v", err)
	}
	t.Cleanup(func() {
		if err := objs.Close(); err != nil {
			t.Errorf("close BPF objects: %v", err)
		}
		var empty T
		*objs = empty
	})
}
