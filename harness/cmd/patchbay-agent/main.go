// SPDX-License-Identifier: MIT

// Command patchbay-agent is PID 1 of a patchbay guest.
package main

import (
	"fmt"
	"os"

	"patchbay/harness/agent"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "patchbay-agent: runs as PID 1 of a guest that patchbay boots; there is nothing to call by hand")
		os.Exit(2)
	}
	// Whatever happens, the machine ends: a guest whose PID 1 has nothing
	// more to say must not wait for a deadline of the host.
	defer agent.Halt()
	port, machine, err := agent.Boot()
	if err == nil {
		err = agent.Serve(port, machine)
	}
	if err != nil {
		// The console is all that is left to tell it to.
		fmt.Println("patchbay-agent:", err)
	}
}
