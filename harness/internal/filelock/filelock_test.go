// SPDX-License-Identifier: MIT

package filelock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := Lock(t.Context(), path, func() { t.Error("waits for a lock that nobody has") })
	if err != nil {
		t.Fatal(err)
	}
	// The second one waits, says so once, and gives up with its context.
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	if f, err := Lock(ctx, path, func() { calls++; cancel() }); !errors.Is(err, context.Canceled) || f != nil {
		t.Errorf("a lock that is held: %v, %v", f, err)
	}
	if calls != 1 {
		t.Errorf("said %d times that it waits", calls)
	}
	// The third gets it as soon as it is given back.
	f, err := Lock(t.Context(), path, func() { held.Close() })
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := Lock(t.Context(), filepath.Join(path, "below"), nil); err == nil {
		t.Error("a lock in a folder that is none")
	}
}
