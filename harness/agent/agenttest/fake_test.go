// SPDX-License-Identifier: MIT

package agenttest_test

import (
	"net"
	"testing"

	"patchbay/harness/agent/agenttest"
)

func TestFakeKeepsTheContract(t *testing.T) {
	agenttest.Contract(t, func(_ *testing.T, conn net.Conn) {
		fake := &agenttest.Fake{Programs: map[string]agenttest.Program{
			agenttest.TalkerPath: func(p *agenttest.Process) int {
				p.Print("%s", agenttest.Said)
				p.PrintError("%s", agenttest.Complained)
				return 3
			},
			agenttest.SleeperPath: func(p *agenttest.Process) int { p.Hang(); return 2 },
		}}
		_ = fake.Serve(conn, func() { conn.Close() })
	})
}
