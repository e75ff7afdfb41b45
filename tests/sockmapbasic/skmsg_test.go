// SPDX-License-Identifier: GPL-2.0-only

package sockmapbasic

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/sockets"
	"patchbay/tests/internal/subtest"
)

// sockMap and sockHash choose the map that a sk_msg test is about. Upstream
// takes the sockmap for both.
func sockMap(objs *bpf.SkmsgObjects) *ebpf.Map  { return objs.SockMap }
func sockHash(objs *bpf.SkmsgObjects) *ebpf.Map { return objs.SockHash }

// skmsgHelpers attaches a sk_msg program that uses socket storage, sends
// through it and detaches it (C: test_skmsg_helpers).
func skmsgHelpers(choose func(*bpf.SkmsgObjects) *ebpf.Map) func(*testing.T) {
	return func(t *testing.T) {
		var objs bpf.SkmsgObjects
		subtest.Load(t, bpf.LoadSkmsgObjects, &objs)
		m := choose(&objs)

		attach.Map(t, m, objs.MsgVerdict, ebpf.AttachSkMsgVerdict)
		wantAttached(t, m, ebpf.AttachSkMsgVerdict, objs.MsgVerdict)
		receiver, sender := sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
		put(t, m, 0, sender)
		sender.Send(t, payload)
		wantBytes(t, receiver.Recv(t, len(payload), 0), payload)
		if got := counter(t, objs.Passed); got != 1 {
			t.Fatalf("the program passed %d messages, want 1", got)
		}
		detach(t, m, objs.MsgVerdict, ebpf.AttachSkMsgVerdict)
	}
}

// skmsgHelpersWithLink attaches a sk_msg program by a link: no second one can
// be attached, and the link's program can be replaced only by one of its type
// and only if the expected old one is there (C: test_skmsg_helpers_with_link).
func skmsgHelpersWithLink(choose func(*bpf.SkmsgObjects) *ebpf.Map) func(*testing.T) {
	return func(t *testing.T) {
		var objs bpf.SkmsgObjects
		subtest.Load(t, bpf.LoadSkmsgObjects, &objs)
		m := choose(&objs)
		const typ = ebpf.AttachSkMsgVerdict

		l := attachLink(t, m, objs.MsgVerdict, typ)
		wantAttached(t, m, typ, objs.MsgVerdict)
		wantErr(t, "attach the linked program again", attach.TryMap(m, objs.MsgVerdict, typ), unix.EBUSY)
		wantNoLink(t, m, objs.MsgVerdictClone, typ, unix.EBUSY)
		wantAttached(t, m, typ, objs.MsgVerdict)

		if err := l.Update(objs.MsgVerdictClone); err != nil {
			t.Fatalf("update the link: %v", err)
		}
		wantAttached(t, m, typ, objs.MsgVerdictClone)
		wantErr(t, "update the link with a program of another type", l.Update(objs.StreamVerdict), unix.EINVAL)
		wantErr(t, "replace another program than the link's", l.UpdateArgs(link.RawLinkUpdateOptions{
			New: objs.MsgVerdict, Old: objs.MsgVerdictClone2, Flags: unix.BPF_F_REPLACE,
		}), unix.EPERM)
		wantAttached(t, m, typ, objs.MsgVerdictClone)
		if err := l.UpdateArgs(link.RawLinkUpdateOptions{
			New: objs.MsgVerdict, Old: objs.MsgVerdictClone, Flags: unix.BPF_F_REPLACE,
		}); err != nil {
			t.Fatalf("replace the link's program: %v", err)
		}
		wantAttached(t, m, typ, objs.MsgVerdict)

		if err := l.Detach(); err != nil {
			t.Fatalf("detach the link: %v", err)
		}
		wantAttached(t, m, typ)
	}
}
