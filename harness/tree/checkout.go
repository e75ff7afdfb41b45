// SPDX-License-Identifier: MIT

package tree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
)

// Checkout makes dir hold exactly the files of the commit, touching only those
// that differ. The caller sees to it that nobody else uses dir meanwhile. The
// index is kept beside it, as dir + ".index". It may be interrupted at any
// point; the next one mends what is left.
func (s *Store) Checkout(ctx context.Context, c Commit, dir string) error {
	s.news.Send(progress.Event{Step: "checkout", State: progress.Started, Detail: c.Describe})
	err := s.checkout(ctx, c, dir)
	if err == nil {
		s.news.Send(progress.Event{Step: "checkout", State: progress.Finished, Detail: c.Describe})
		return nil
	}
	s.news.Send(progress.Event{Step: "checkout", State: progress.Failed, Detail: c.Describe})
	var e *fault.Error
	if ctx.Err() != nil || errors.As(err, &e) {
		return err
	}
	return &fault.Error{
		Blame: fault.Harness, Doing: "checking out the sources to " + dir, Subject: c.Describe, Err: err,
		Next: "see to it that the disk is not full and the repository that the sources are from is still there",
	}
}

func (s *Store) checkout(ctx context.Context, c Commit, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return cannotWrite(dir, err)
	}
	// The caller's lock ends with this process, but git may go on for a
	// moment after we were killed: it inherits this one.
	lock, err := lockFile(ctx, dir+".index.flock")
	if err != nil {
		return err
	}
	defer lock.Close()

	index := dir + ".index"
	// With the lock held, git's own lock file can only be a left-over.
	if err := os.Remove(index + ".lock"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return cannotWrite(index, err)
	}
	how := Git{Dir: dir, WorkTree: dir, Index: index, Objects: c.Objects, hold: lock}
	update := func() error {
		_, err := s.Git(ctx, how, "read-tree", "-u", "--reset", c.ID)
		return err
	}
	if _, missing := os.Lstat(index); missing != nil {
		err = s.mendIndex(ctx, how, c)
	}
	if err == nil {
		err = update()
	}
	if err != nil && brokenIndex(err) {
		if err := os.Remove(index); err != nil && !errors.Is(err, os.ErrNotExist) {
			return cannotWrite(index, err)
		}
		if err = s.mendIndex(ctx, how, c); err == nil {
			err = update()
		}
	}
	if err != nil {
		return err
	}
	// Files that are in no index: left by a checkout that was interrupted
	// between writing them and writing its index, or by anyone else.
	_, err = s.Git(ctx, how, "clean", "-ffdxq")
	return err
}

// brokenIndex says whether git refused the index file itself.
func brokenIndex(err error) bool {
	var g *GitError
	return errors.As(err, &g) && strings.Contains(g.Stderr, "index file")
}

// mendIndex makes an index for a folder that has lost it: files that are what
// the commit says are known as such and will not be touched.
func (s *Store) mendIndex(ctx context.Context, how Git, c Commit) error {
	entries, err := os.ReadDir(how.Dir)
	if err != nil {
		return cannotWrite(how.Dir, err)
	}
	if len(entries) == 0 {
		return nil
	}
	if _, err := s.Git(ctx, how, "read-tree", c.ID); err != nil {
		return err
	}
	// It exits with 1 if any file differs, which is what is to be mended.
	_, err = s.Git(ctx, how, "update-index", "-q", "--refresh")
	var g *GitError
	if errors.As(err, &g) && g.Code == 1 {
		return nil
	}
	return err
}
