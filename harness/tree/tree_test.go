// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"patchbay/harness/internal/fault"
)

// kernelFiles are the fewest files that make a kernel tree, and one more.
var kernelFiles = map[string]string{
	"Makefile":         "# SPDX\nVERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 3\nEXTRAVERSION = -rc1\nNAME = A Name\n",
	"Kconfig":          "mainmenu \"Linux\"\n",
	"net/core/skmsg.c": "int skmsg;\n",
}

const kernelFilesVersion = "6.12.3-rc1"

// open opens a store in a folder of its own, with a space in its name.
func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(context.Background(), filepath.Join(t.TempDir(), "a cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// write writes files below a folder, making the folders they are in.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// kernelDir makes a folder of plain kernel sources.
func kernelDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a tree")
	write(t, dir, kernelFiles)
	return dir
}

// userGit runs git as a user would, in a user's folder.
func userGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=Ada", "-c", "user.email=ada@example.org"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_DATE="+epoch, "GIT_COMMITTER_DATE="+epoch)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// kernelRepo makes a git work tree of kernel sources with one commit.
func kernelRepo(t *testing.T) string {
	t.Helper()
	dir := kernelDir(t)
	userGit(t, dir, "init", "-q", "-b", "main")
	userGit(t, dir, "add", "-A")
	userGit(t, dir, "commit", "-qm", "net: the first")
	return dir
}

func resolve(t *testing.T, s *Store, src Source) Commit {
	t.Helper()
	c, err := s.Resolve(context.Background(), src)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wrong checks that resolving fails as a fault of that blame and says all that
// is asked for.
func wrong(t *testing.T, s *Store, src Source, blame fault.Blame, say ...string) {
	t.Helper()
	c, err := s.Resolve(context.Background(), src)
	if err == nil {
		t.Errorf("%+v was taken for %+v", src, c)
		return
	}
	faulty(t, err, blame, say...)
}

func faulty(t *testing.T, err error, blame fault.Blame, say ...string) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) {
		t.Errorf("%v is no fault", err)
		return
	}
	if e.Blame != blame {
		t.Errorf("%v is blamed on %v, not on %v", err, e.Blame, blame)
	}
	if e.Next == "" {
		t.Errorf("%v does not say what to do next", err)
	}
	for _, s := range say {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not say %q", err, s)
		}
	}
}

// content returns all files of a commit as they are in git, with their modes.
func content(t *testing.T, s *Store, c Commit) map[string]string {
	t.Helper()
	files := map[string]string{}
	out, err := s.Git(context.Background(), Git{Objects: c.Objects}, "ls-tree", "-r", "-z", c.ID)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var ids bytes.Buffer
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if meta, name, ok := strings.Cut(entry, "\t"); ok {
			fields := strings.Fields(meta)
			names = append(names, name)
			files[name] = fields[0]
			fmt.Fprintln(&ids, fields[2])
		}
	}
	blobs, err := s.Git(context.Background(), Git{Objects: c.Objects, Stdin: &ids}, "cat-file", "--batch=%(objectsize)")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		size, rest, _ := bytes.Cut(blobs, []byte("\n"))
		n, err := strconv.Atoi(string(size))
		if err != nil {
			t.Fatalf("%s: git cat-file said %q", name, size)
		}
		files[name] += " " + string(rest[:n])
		blobs = rest[n+1:]
	}
	return files
}

// plain is what content is for files that are not executable.
func plain(files map[string]string) map[string]string {
	all := map[string]string{}
	for name, text := range files {
		all[name] = "100644 " + text
	}
	return all
}

// look describes every file below a folder so that nothing can be written
// there without a difference: what ctime says cannot be set back.
func look(t *testing.T, dir string) map[string]string {
	t.Helper()
	seen := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		seen[path] = fmt.Sprint(info.Mode(), info.Size(), st.Ino, st.Mtim, st.Ctim)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// nothingLeft checks that an attempt left neither objects nor refs nor scratch
// folders in a store that was empty before.
func nothingLeft(t *testing.T, s *Store) {
	t.Helper()
	for _, args := range [][]string{{"for-each-ref"}, {"cat-file", "--batch-all-objects", "--batch-check"}} {
		if out, err := s.Git(context.Background(), Git{}, args...); err != nil || len(out) > 0 {
			t.Errorf("git %s: %v\n%s", args[0], err, out)
		}
	}
	noScratch(t, s)
}

// noScratch checks that no temporary files are left in the cache.
func noScratch(t *testing.T, s *Store) {
	t.Helper()
	for _, pattern := range []string{"tmp/*", "git/objects/pack/tmp_*"} {
		if left, _ := filepath.Glob(filepath.Join(s.cache, pattern)); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}
