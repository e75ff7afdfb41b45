// SPDX-License-Identifier: GPL-2.0-only

// Package attach attaches BPF programs for the time of a test.
package attach

import (
	"errors"
	"io"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Map attaches program to m (C: bpf_prog_attach). It stays until the map goes.
func Map(t testing.TB, m *ebpf.Map, program *ebpf.Program, typ ebpf.AttachType) {
	t.Helper()
	if err := TryMap(m, program, typ); err != nil {
		t.Fatalf("attach %s to %s as %s: %v", program, m, typ, err)
	}
}

// TryMap attaches program to m, or says why it cannot be.
func TryMap(m *ebpf.Map, program *ebpf.Program, typ ebpf.AttachType) error {
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: m.FD(), Program: program, Attach: typ})
}

// Iterate runs an iterator program once over m.
func Iterate(t testing.TB, program *ebpf.Program, m *ebpf.Map) {
	t.Helper()
	iter, err := link.AttachIter(link.IterOptions{Program: program, Map: m})
	if err != nil {
		t.Fatalf("attach the iterator: %v", err)
	}
	r, err := iter.Open()
	if err != nil {
		t.Fatal(errors.Join(err, iter.Close()))
	}
	_, err = io.Copy(io.Discard, r)
	if err = errors.Join(err, r.Close(), iter.Close()); err != nil {
		t.Fatalf("iterate over %s: %v", m, err)
	}
}

// Tracing attaches a fentry program; it is detached at the end of t.
func Tracing(t testing.TB, program *ebpf.Program) {
	t.Helper()
	l, err := link.AttachTracing(link.TracingOptions{Program: program})
	if err != nil {
		t.Fatalf("attach %s: %v", program, err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("detach %s: %v", program, err)
		}
	})
}
