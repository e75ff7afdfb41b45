// SPDX-License-Identifier: MIT

package tree

import (
	"context"

	"patchbay/harness/internal/progress"
)

// Store is the git repository in the cache that holds every imported source.
type Store struct {
	dir  string
	news progress.Func
}

// Open opens the store in the cache folder and makes it if there is none.
// News about long steps go to news, which may be nil.
func Open(ctx context.Context, cacheDir string, news progress.Func) (*Store, error) {
	return nil, nil
}

// Resolve finds the sources, imports what the store does not have, and returns
// the commit.
func (s *Store) Resolve(ctx context.Context, src Source) (Commit, error) { return Commit{}, nil }

// Checkout makes dir hold exactly the files of the commit, touching only those
// that differ. The caller sees to it that nobody else uses dir meanwhile. The
// index is kept beside it, as dir + ".index".
func (s *Store) Checkout(ctx context.Context, c Commit, dir string) error { return nil }
