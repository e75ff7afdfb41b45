// SPDX-License-Identifier: MIT

package tree

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// program is a command whose output is read.
type program struct {
	io.Reader
	// close ends it. The error says why it failed; to be ended before it
	// could write everything is no failure.
	close func() error
}

// start starts a command that reads from stdin, which may be nil.
func start(ctx context.Context, stdin io.Reader, name string, args ...string) (program, error) {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stderr = stdin, &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return program{}, err
	}
	if err := cmd.Start(); err != nil {
		return program{}, err
	}
	return program{out, func() error {
		out.Close()
		err := cmd.Wait()
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &exit):
			if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGPIPE {
				return nil
			}
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
		}
		return err
	}}, nil
}

// unpack undoes whatever compression the first bytes tell of.
func unpack(ctx context.Context, r io.Reader) (program, error) {
	in := bufio.NewReaderSize(r, 1<<18)
	// The magic word of tar lies at 257. A shorter file is none of these, or
	// is cut off, which reading it will tell.
	head, _ := in.Peek(262)
	starts := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	nothing := func() error { return nil }
	switch {
	case starts("\xfd7zXZ\x00"):
		return start(ctx, in, "xz", "-dc", "-T0")
	case starts("\x28\xb5\x2f\xfd"):
		return start(ctx, in, "zstd", "-dcq")
	case starts("\x1f\x8b"):
		z, err := gzip.NewReader(in)
		return program{z, nothing}, err
	case starts("BZh"):
		return program{bzip2.NewReader(in), nothing}, nil
	case len(head) == 262 && string(head[257:]) == "ustar":
		return program{in, nothing}, nil
	}
	return program{}, errors.New("it is no tar archive, neither plain nor packed with xz, gzip, bzip2 or zstd")
}
