// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/subtest"
)

// skbVerdictAttach checks, in both orders, that a verdict and a stream verdict
// program exclude each other on one map (C: test_sockmap_skb_verdict_attach).
func skbVerdictAttach(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	m, program := objs.Rx, objs.SkbVerdict
	for _, order := range []struct{ first, second ebpf.AttachType }{
		{ebpf.AttachSkSKBVerdict, ebpf.AttachSkSKBStreamVerdict},
		{ebpf.AttachSkSKBStreamVerdict, ebpf.AttachSkSKBVerdict},
	} {
		attach.Map(t, m, program, order.first)
		wantErr(t, "attach as "+order.second.String()+" beside "+order.first.String(),
			attach.TryMap(m, program, order.second), unix.EBUSY)
		wantAttached(t, m, order.first, program)
		detach(t, m, program, order.first)
		// It was the first one that stood in the way.
		attach.Map(t, m, program, order.second)
		detach(t, m, program, order.second)
	}
}

// skbVerdictAttachWithLink detaches a link, attaches the program without one,
// and then no link must get in beside it
// (C: test_sockmap_skb_verdict_attach_with_link).
func skbVerdictAttachWithLink(t *testing.T) {
	var objs bpf.VerdictObjects
	subtest.Load(t, bpf.LoadVerdictObjects, &objs)
	m, program := objs.Rx, objs.SkbVerdict

	l := attachLink(t, m, program, ebpf.AttachSkSKBVerdict)
	wantAttached(t, m, ebpf.AttachSkSKBVerdict, program)
	if err := l.Detach(); err != nil {
		t.Fatalf("detach the link: %v", err)
	}
	wantAttached(t, m, ebpf.AttachSkSKBVerdict)

	attach.Map(t, m, program, ebpf.AttachSkSKBStreamVerdict)
	wantNoLink(t, m, program, ebpf.AttachSkSKBVerdict, unix.EBUSY)
	wantAttached(t, m, ebpf.AttachSkSKBStreamVerdict, program)
	detach(t, m, program, ebpf.AttachSkSKBStreamVerdict)
}

// progsQuery checks what a query says before and after a program is attached
// (C: test_sockmap_progs_query).
func progsQuery(typ ebpf.AttachType) func(*testing.T) {
	return func(t *testing.T) {
		var objs bpf.VerdictObjects
		subtest.Load(t, bpf.LoadVerdictObjects, &objs)
		program := objs.SkbDrop
		if typ == ebpf.AttachSkMsgVerdict {
			program = objs.MsgDrop
		}
		wantAttached(t, objs.Rx, typ)
		attach.Map(t, objs.Rx, program, typ)
		wantAttached(t, objs.Rx, typ, program)
		detach(t, objs.Rx, program, typ)
	}
}
