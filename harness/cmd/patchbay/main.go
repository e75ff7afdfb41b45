// SPDX-License-Identifier: MIT

// Command patchbay tests kernel patches in VMs: it applies a series, builds the
// kernel and its libbpf, boots it through virtme-ng, runs Go tests in the
// guest, and says what passed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
)

func main() {
	keeper.Main()
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interrupts returns a context that the first interruption cancels. The second
// ends the program at once: whatever it started is ended by its keeper.
func interrupts() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		if _, ok := <-signals; !ok {
			return
		}
		fmt.Fprintln(os.Stderr, "patchbay: stopping; results so far are kept. Once more to stop at once.")
		cancel()
		if _, ok := <-signals; ok {
			os.Exit(fault.ExitHarness)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}

// exitError carries an exit code that has been explained already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the command line and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, done := interrupts()
	defer done()
	root := command(&app{stdin: stdin, stdout: stdout, stderr: stderr})
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var code exitError
	switch {
	case err == nil:
		return fault.ExitOK
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintf(stderr, "patchbay: %v\n", err)
	if ctx.Err() != nil {
		return fault.ExitHarness
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		// Cobra's own complaints are about usage.
		return fault.ExitConfiguration
	}
	return fault.ExitCode(err)
}

// app is what the commands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

const exitCodes = `Exit codes:
  0  all as expected
  1  something under test failed: a test, a splat, a crash, a kernel that does not boot
  2  usage or configuration
  3  a patch does not apply; kernel, libbpf or tests do not compile
  4  the harness or the host failed, or the run was interrupted`

func command(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "patchbay",
		Short: "Test kernel patches in VMs",
		Long: `patchbay takes a kernel patch series, builds the patched kernel and libbpf, boots
them in QEMU guests through virtme-ng, runs Go tests inside the guest over
virtio-serial, and says what passed, what failed, and what the kernel log held
against it.

` + exitCodes,
		Example: `  patchbay run                                    the project's series on v6.12
  patchbay run --series none                      the same kernel without it
  patchbay run --kdir ~/src/bpf-next              your tree, uncommitted changes included
  patchbay run --series my.mbox --test sockmap_copy
  b4 am -o - LINK | patchbay run --series -`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "reading the command line", Err: err,
			Next: cmd.CommandPath() + " --help lists the flags",
		}
	})
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(a.runCommand(), a.buildCommand(), a.listCommand(), a.doctorCommand(), a.reportCommand(), a.cleanCommand())
	return root
}

// noArgs refuses arguments with a message that helps.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &fault.Error{
		Blame: fault.Configuration, Doing: "reading the command line", Subject: strings.Join(args, " "),
		Err: fmt.Errorf("%s takes no arguments", cmd.CommandPath()), Next: cmd.CommandPath() + " --help shows what it takes",
	}
}
