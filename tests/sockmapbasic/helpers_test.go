// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"patchbay/tests/internal/sockets"
)

// verdicts that a BPF program returns (enum sk_action).
const skPass = 1

// payload is what the data tests send: 256 bytes, all different.
var payload = func() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// put adds s to m under key, which must be free.
func put(t *testing.T, m *ebpf.Map, key uint32, s *sockets.Socket) {
	t.Helper()
	if err := m.Update(key, s.Value(), ebpf.UpdateNoExist); err != nil {
		t.Fatalf("add %s to %s: %v", s, m, err)
	}
}

// replace puts s into m under key, whatever is there.
func replace(t *testing.T, m *ebpf.Map, key uint32, s *sockets.Socket) {
	t.Helper()
	if err := m.Update(key, s.Value(), ebpf.UpdateAny); err != nil {
		t.Fatalf("put %s into %s: %v", s, m, err)
	}
}

// wantSocket checks that s is what m has under key.
func wantSocket(t *testing.T, m *ebpf.Map, key uint32, s *sockets.Socket) {
	t.Helper()
	var cookie uint64
	if err := m.Lookup(key, &cookie); err != nil {
		t.Fatalf("look up key %d in %s: %v", key, m, err)
	}
	if want := s.Cookie(t); cookie != want {
		t.Fatalf("key %d of %s has cookie %d, want %d of %s", key, m, cookie, want, s)
	}
}

// wantNoSocket checks that m has nothing under key.
func wantNoSocket(t *testing.T, m *ebpf.Map, key uint32) {
	t.Helper()
	var cookie uint64
	wantErr(t, fmt.Sprintf("look up key %d in %s", key, m), m.Lookup(key, &cookie), ebpf.ErrKeyNotExist)
}

// remove deletes key, which must be there, and checks that it is gone.
func remove(t *testing.T, m *ebpf.Map, key uint32) {
	t.Helper()
	if err := m.Delete(key); err != nil {
		t.Fatalf("delete key %d from %s: %v", key, m, err)
	}
	wantNoSocket(t, m, key)
	// A sockmap says EINVAL where other maps say ENOENT.
	wantErr(t, fmt.Sprintf("delete key %d from %s again", key, m), m.Delete(key), unix.EINVAL)
}

// wantErr checks that err is want.
func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got %v, want %v", what, err, want)
	}
}

// wantVerifierReason checks that the verifier refused a program and said why.
func wantVerifierReason(t *testing.T, err error, reason string) {
	t.Helper()
	var refused *ebpf.VerifierError
	if !errors.As(err, &refused) {
		t.Fatalf("load program: got %v, want a refusal by the verifier", err)
	}
	if !strings.Contains(strings.Join(refused.Log, "\n"), reason) {
		t.Fatalf("the verifier does not say %q: %+v", reason, refused)
	}
}

// detach detaches program from m and checks that it is gone
// (C: bpf_prog_detach2).
func detach(t *testing.T, m *ebpf.Map, program *ebpf.Program, typ ebpf.AttachType) {
	t.Helper()
	err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: m.FD(), Program: program, Attach: typ})
	if err != nil {
		t.Fatalf("detach %s from %s as %s: %v", program, m, typ, err)
	}
	wantAttached(t, m, typ)
}

// tryLink attaches program to m by a link
// (C: bpf_program__attach_sockmap).
func tryLink(m *ebpf.Map, program *ebpf.Program, typ ebpf.AttachType) (*link.RawLink, error) {
	return link.AttachRawLink(link.RawLinkOptions{Target: m.FD(), Program: program, Attach: typ})
}

// attachLink is tryLink that must succeed; the link is closed with the test.
func attachLink(t *testing.T, m *ebpf.Map, program *ebpf.Program, typ ebpf.AttachType) *link.RawLink {
	t.Helper()
	l, err := tryLink(m, program, typ)
	if err != nil {
		t.Fatalf("link %s to %s as %s: %v", program, m, typ, err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close link: %v", err)
		}
	})
	return l
}

// wantNoLink checks that linking program to m fails with want.
func wantNoLink(t *testing.T, m *ebpf.Map, program *ebpf.Program, typ ebpf.AttachType, want error) {
	t.Helper()
	l, err := tryLink(m, program, typ)
	if err == nil {
		l.Close()
	}
	wantErr(t, fmt.Sprintf("link %s to %s as %s", program, m, typ), err, want)
}

// wantAttached checks that exactly these programs are attached to m, and that
// the query reports no flags (C: bpf_prog_query).
func wantAttached(t *testing.T, m *ebpf.Map, typ ebpf.AttachType, programs ...*ebpf.Program) {
	t.Helper()
	var want []ebpf.ProgramID
	for _, program := range programs {
		info, err := program.Info()
		if err != nil {
			t.Fatalf("info of %s: %v", program, err)
		}
		id, ok := info.ID()
		if !ok {
			t.Fatalf("the kernel gives no ID for %s", program)
		}
		want = append(want, id)
	}
	got, flags, err := queryPrograms(m, typ)
	if err != nil {
		t.Fatalf("query %s of %s: %v", typ, m, err)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("query %s of %s: programs %v, want %v", typ, m, got, want)
	}
	if flags != 0 {
		t.Fatalf("query %s of %s: attach flags %#x, want 0", typ, m, flags)
	}
}

// queryPrograms asks which programs are attached to m. It makes the call
// itself because [link.QueryPrograms] does not return the attach flags.
func queryPrograms(m *ebpf.Map, typ ebpf.AttachType) ([]ebpf.ProgramID, uint32, error) {
	const progQuery = 16 // BPF_PROG_QUERY in enum bpf_cmd
	var ids [3]ebpf.ProgramID
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&ids[0])
	// The query member of union bpf_attr (include/uapi/linux/bpf.h).
	attr := struct {
		targetFD    uint32
		attachType  uint32
		queryFlags  uint32
		attachFlags uint32
		progIDs     uint64
		progCount   uint32
		_           uint32
		progFlags   uint64
		linkIDs     uint64
		linkFlags   uint64
		revision    uint64
	}{
		targetFD:   uint32(m.FD()),
		attachType: uint32(typ),
		// Not 0, to see that the kernel writes it.
		attachFlags: ^uint32(0),
		progIDs:     uint64(uintptr(unsafe.Pointer(&ids[0]))),
		progCount:   uint32(len(ids)),
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, progQuery, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return nil, 0, errno
	}
	if int(attr.progCount) > len(ids) {
		return nil, 0, fmt.Errorf("%d programs, want at most %d", attr.progCount, len(ids))
	}
	return ids[:attr.progCount], attr.attachFlags, nil
}

// counter reads a global variable of a BPF program.
func counter(t *testing.T, v *ebpf.Variable) uint64 {
	t.Helper()
	var n uint64
	if err := v.Get(&n); err != nil {
		t.Fatalf("read %s: %v", v, err)
	}
	return n
}

// waitCounter waits until a global variable of a BPF program is want.
func waitCounter(t *testing.T, v *ebpf.Variable, want uint64) {
	t.Helper()
	var got uint64
	if !sockets.Eventually(func() bool { got = counter(t, v); return got == want }) {
		t.Fatalf("%s is %d after %v, want %d", v, got, sockets.Deadline(), want)
	}
}

// wantBytes checks what was received.
func wantBytes(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("received %d bytes %x, want %d bytes %x", len(got), got, len(want), want)
	}
}
