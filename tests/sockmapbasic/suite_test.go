// SPDX-License-Identifier: GPL-2.0-only

// Package sockmapbasic is the kernel's sockmap_basic selftest
// (tools/testing/selftests/bpf/prog_tests/sockmap_basic.c) in Go, with the
// same sub-test names and stricter checks: every wait ends, every refusal is
// checked for its errno, and "nothing there" counts only once it is proved
// that something came.
//
// The files go by subject; helpers_test.go has what they share.
package sockmapbasic

import (
	"testing"

	"github.com/cilium/ebpf"

	"patchbay/tests/internal/subtest"
)

// TestSockmapBasic runs the sub-tests in upstream's order. They depend on
// nothing that another one did.
func TestSockmapBasic(t *testing.T) {
	subtest.Run(t, []subtest.Test{
		{Name: "sockmap create_update_free", Func: createUpdateFree(ebpf.SockMap)},
		{Name: "sockhash create_update_free", Func: createUpdateFree(ebpf.SockHash)},
		{Name: "sockmap sk_msg load helpers", Func: skmsgHelpers(sockMap)},
		{Name: "sockhash sk_msg load helpers", Func: skmsgHelpers(sockHash)},
		{Name: "sockmap update", Func: updateFromTC(ebpf.SockMap)},
		{Name: "sockhash update", Func: updateFromTC(ebpf.SockHash)},
		{Name: "sockmap update in unsafe context", Func: updateInUnsafeContext},
		{Name: "sockmap copy", Func: copySockMap},
		{Name: "sockhash copy", Func: copySockHash},
		{Name: "sockmap skb_verdict attach", Func: skbVerdictAttach},
		{Name: "sockmap skb_verdict attach_with_link", Func: skbVerdictAttachWithLink},
		{Name: "sockmap msg_verdict progs query", Func: progsQuery(ebpf.AttachSkMsgVerdict)},
		{Name: "sockmap stream_parser progs query", Func: progsQuery(ebpf.AttachSkSKBStreamParser)},
		{Name: "sockmap stream_verdict progs query", Func: progsQuery(ebpf.AttachSkSKBStreamVerdict)},
		{Name: "sockmap skb_verdict progs query", Func: progsQuery(ebpf.AttachSkSKBVerdict)},
		{Name: "sockmap skb_verdict shutdown", Func: skbVerdictShutdown},
		{Name: "sockmap skb_verdict fionread", Func: skbVerdictFionread},
		{Name: "sockmap skb_verdict fionread on drop", Func: skbVerdictFionreadOnDrop},
		{Name: "sockmap skb_verdict msg_f_peek", Func: skbVerdictPeek},
		{Name: "sockmap skb_verdict msg_f_peek with link", Func: skbVerdictPeekWithLink},
		{Name: "sockmap unconnected af_unix", Func: unconnectedUnix},
		{Name: "sockmap one socket to many map entries", Func: manyEntries},
		{Name: "sockmap one socket to many maps", Func: manyMaps},
		{Name: "sockmap same socket replace", Func: sameSocketReplace},
		{Name: "sockmap sk_msg attach sockmap helpers with link", Func: skmsgHelpersWithLink(sockMap)},
		{Name: "sockhash sk_msg attach sockhash helpers with link", Func: skmsgHelpersWithLink(sockHash)},
	})
}
