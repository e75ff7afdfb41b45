// SPDX-License-Identifier: GPL-2.0-only

// Package cpuaffinity tests that an update of a sockmap or sockhash can choose
// the CPU that moves the socket's data (BPF_F_CPU).
//
// A return code says nothing about where work runs, and where it ran says
// nothing about what became of the data; so the tests count on which CPUs
// sk_psock_backlog works on the socket, and read what came out at the end.
package cpuaffinity

import (
	"testing"

	"patchbay/tests/internal/subtest"
)

func TestCPUAffinity(t *testing.T) {
	subtest.Run(t, []subtest.Test{
		{Name: "sockmap flags", Func: flags(sockmap)},
		{Name: "sockhash flags", Func: flags(sockhash)},
		{Name: "other map types", Func: otherMapTypes},
		{Name: "sockmap placement", Func: placement(sockmap)},
		{Name: "sockhash placement", Func: placement(sockhash)},
		{Name: "sockmap no cpu", Func: noCPU(sockmap)},
		{Name: "sockhash no cpu", Func: noCPU(sockhash)},
		{Name: "sockmap back pressure", Func: backPressure(sockmap)},
		{Name: "sockhash back pressure", Func: backPressure(sockhash)},
		{Name: "sockmap failed update", Func: failedUpdate(sockmap)},
		{Name: "sockhash failed update", Func: failedUpdate(sockhash)},
		{Name: "sockmap last cpu counts", Func: lastCounts(sockmap)},
		{Name: "sockhash last cpu counts", Func: lastCounts(sockhash)},
		{Name: "sockmap update by a program", Func: byProgram(sockmap)},
		{Name: "sockhash update by a program", Func: byProgram(sockhash)},
		{Name: "sockmap offline cpu", Func: offline(sockmap)},
		{Name: "sockhash offline cpu", Func: offline(sockhash)},
		{Name: "sockmap cpu goes offline under back pressure", Func: offlineUnderPressure(sockmap)},
		{Name: "sockhash cpu goes offline under back pressure", Func: offlineUnderPressure(sockhash)},
	})
}
