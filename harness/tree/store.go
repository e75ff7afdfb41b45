// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/filelock"
	"patchbay/harness/internal/progress"
)

// Store is the git repository in the cache that holds every imported source.
// Any number of processes may use the same one.
type Store struct {
	cache string // the cache folder
	dir   string // the bare repository in it
	news  progress.Func
	host  host
}

// storeConfig is the configuration of the store. Fast compression, because a
// kernel is imported far more often than its disk space matters; no automatic
// clean-up, because snapshots are not reachable from any ref.
const storeConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	compression = 1
	logallrefupdates = false
	hookspath = /dev/null
	excludesfile = /dev/null
	attributesfile = /dev/null
[gc]
	auto = 0
[maintenance]
	auto = false
[checkout]
	workers = 0
[feature]
	manyfiles = false
`

// Open opens the store in the cache folder and makes it if there is none.
// News about long steps go to news, which may be nil.
func Open(ctx context.Context, cacheDir string, news progress.Func) (*Store, error) {
	if err := checkGit(ctx); err != nil {
		return nil, err
	}
	cache, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, cannotOpen(cacheDir, err)
	}
	s := &Store{cache: cache, dir: filepath.Join(cache, "git"), news: news, host: machine}
	if err := os.MkdirAll(cache, 0o777); err != nil {
		return nil, cannotOpen(cache, err)
	}
	lock, err := s.lock(ctx, "open")
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	config := filepath.Join(s.dir, "config")
	if have, err := os.ReadFile(config); err == nil && bytes.Equal(have, []byte(storeConfig)) {
		return s, nil
	}
	// The configuration is written last: a store without it is made again.
	if _, err := (Git{}).Run(ctx, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", s.dir); err != nil {
		return nil, cannotOpen(s.dir, err)
	}
	if err := os.WriteFile(config+".new", []byte(storeConfig), 0o666); err != nil {
		return nil, cannotOpen(s.dir, err)
	}
	if err := os.Rename(config+".new", config); err != nil {
		return nil, cannotOpen(s.dir, err)
	}
	return s, nil
}

func cannotOpen(dir string, err error) error {
	return &fault.Error{
		Blame: fault.Harness, Doing: "opening the source store", Subject: dir, Err: err,
		Next: "make the cache folder writable or choose another",
	}
}

// Git runs git on the store.
func (s *Store) Git(ctx context.Context, how Git, args ...string) ([]byte, error) {
	how.Repository = s.dir
	return how.Run(ctx, args...)
}

func (s *Store) line(ctx context.Context, how Git, args ...string) (string, error) {
	how.Repository = s.dir
	return how.line(ctx, args...)
}

// TempDir makes a folder for scratch files in the cache. The caller removes it.
func (s *Store) TempDir() (string, error) {
	parent := filepath.Join(s.cache, "tmp")
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", cannotWrite(parent, err)
	}
	dir, err := os.MkdirTemp(parent, "tree-")
	if err != nil {
		return "", cannotWrite(parent, err)
	}
	return dir, nil
}

func cannotWrite(path string, err error) error {
	return &fault.Error{
		Blame: fault.Harness, Doing: "writing to the cache", Subject: path, Err: err,
		Next: "see to it that the cache folder is writable and the disk not full",
	}
}

// lock takes the named lock in the cache, waiting for it as long as ctx lasts.
// Closing the file gives it back.
func (s *Store) lock(ctx context.Context, name string) (*os.File, error) {
	return lockFile(ctx, filepath.Join(s.cache, name+".lock"))
}

// lockFile takes the lock on a file. It belongs to the open file, which a
// command can inherit: then it lasts until the command has ended too.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := filelock.Lock(ctx, path, nil)
	if err != nil && ctx.Err() == nil {
		err = cannotWrite(path, err)
	}
	return f, err
}

// adopt copies objects that live in a user's repository into the store, unless
// it has them.
func (s *Store) adopt(ctx context.Context, objects []string, ids []byte) error {
	if len(objects) == 0 {
		return nil
	}
	have, err := s.Git(ctx, Git{Stdin: bytes.NewReader(ids)}, "cat-file", "--batch-check=%(objectname)")
	if err != nil {
		return storeFailed("looking for objects in the source store", err)
	}
	var missing bytes.Buffer
	for l := range bytes.Lines(have) {
		if id, ok := bytes.CutSuffix(l, []byte(" missing\n")); ok {
			missing.Write(append(id, '\n'))
		}
	}
	if missing.Len() == 0 {
		return nil
	}
	pack := filepath.Join(s.dir, "objects", "pack", "pack")
	if err := os.MkdirAll(filepath.Dir(pack), 0o777); err != nil {
		return cannotWrite(filepath.Dir(pack), err)
	}
	if _, err := s.Git(ctx, Git{Stdin: &missing, Objects: objects}, "pack-objects", "-q", "--window=0", pack); err != nil {
		return storeFailed("copying objects into the source store", err)
	}
	return nil
}

// Adopt copies what is needed in order to commit on top of c into the store:
// the commit and its folders, and the given blobs. Without it, git commands
// that write would need to see a user's objects. A blob may be named as git
// names it (abbreviated, COMMIT:PATH); one that is not there is left out.
func (s *Store) Adopt(ctx context.Context, c Commit, blobs ...string) error {
	if len(c.Objects) == 0 {
		return nil
	}
	read := Git{Objects: c.Objects}
	// Folders are only ever stored after those below them, so the topmost
	// stands for all.
	if _, err := s.Git(ctx, Git{}, "cat-file", "-e", c.Tree); err != nil {
		ids, err := s.Git(ctx, read, "rev-list", "--objects", "--no-object-names", "--filter=blob:none", "--no-walk", c.ID)
		if err != nil {
			return storeFailed("reading the folders of "+c.Describe, err)
		}
		if err := s.adopt(ctx, c.Objects, ids); err != nil {
			return err
		}
	}
	if err := s.adopt(ctx, c.Objects, []byte(c.ID+"\n")); err != nil {
		return err
	}
	if len(blobs) == 0 {
		return nil
	}
	var names, ids bytes.Buffer
	for _, b := range blobs {
		fmt.Fprintln(&names, b)
	}
	read.Stdin = &names
	found, err := s.Git(ctx, read, "cat-file", "--batch-check=%(objecttype) %(objectname)")
	if err != nil {
		return storeFailed("reading the files of "+c.Describe, err)
	}
	for l := range bytes.Lines(found) {
		if id, ok := bytes.CutPrefix(l, []byte("blob ")); ok {
			ids.Write(id)
		}
	}
	return s.adopt(ctx, c.Objects, ids.Bytes())
}

func storeFailed(doing string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &fault.Error{
		Blame: fault.Harness, Doing: doing, Err: err,
		Next: "see to it that the disk is not full; if it goes on, bin/patchbay clean makes the store anew",
	}
}
