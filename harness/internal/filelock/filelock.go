// SPDX-License-Identifier: MIT

// Package filelock takes locks that other processes respect.
package filelock

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// poll is how often a lock that another process holds is asked for.
const poll = 20 * time.Millisecond

// Lock takes the lock on a file, which is made if need be, waiting for it as
// long as ctx lasts; waiting, unless nil, is called once if it has to wait.
// Closing the file gives the lock back.
//
// It is done by hand and not through a library because commands are given this
// very file: a lock of flock(2) belongs to the open file, so it lasts until the
// last process that has it is gone, even if this one is killed before.
func Lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, &os.PathError{Op: "flock", Path: path, Err: err}
		case first && waiting != nil:
			waiting()
		}
		// A blocking flock(2) could not be given up with the context.
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}
