// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

// busy makes a work tree in which everything that can differ from HEAD does.
func busy(t *testing.T) string {
	t.Helper()
	dir := kernelDir(t)
	write(t, dir, map[string]string{
		".gitignore":          "*.o\n",
		"staged.c":            "before\n",
		"both.c":              "before\n",
		"removed.c":           "before\n",
		"staged-away.c":       "before\n",
		"becomes-exec.sh":     "#!/bin/sh\n",
		"becomes-folder":      "a file\n",
		"becomes-file/inside": "a file\n",
		"becomes-link":        "a file\n",
		"unchanged.c":         "unchanged\n",
	})
	userGit(t, dir, "init", "-q", "-b", "main")
	userGit(t, dir, "add", "-A")
	userGit(t, dir, "commit", "-qm", "net: the first")

	write(t, dir, map[string]string{"staged.c": "after\n", "both.c": "staged\n", "new-staged.c": "new\n"})
	userGit(t, dir, "add", "staged.c", "both.c", "new-staged.c")
	userGit(t, dir, "rm", "-q", "--cached", "staged-away.c")
	for _, name := range []string{"removed.c", "staged-away.c", "becomes-folder", "becomes-file/inside", "becomes-file", "becomes-link"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, map[string]string{
		"net/core/skmsg.c":        "int changed;\n",
		"both.c":                  "in the folder\n",
		"becomes-folder/inside":   "a file\n",
		"becomes-file":            "a file\n",
		"new/deep/file.c":         "new\n",
		"odd \"name\"\nof a file": "new\n",
		"-v":                      "an option?\n",
		":(glob)*":                "a pathspec?\n",
		"net/core/skmsg.o":        "ignored\n",
	})
	if err := os.Chmod(filepath.Join(dir, "becomes-exec.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("unchanged.c", filepath.Join(dir, "becomes-link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What is tested is what `git add -A` would take from the user's tree, and
// nothing in that tree is touched.
func TestUncommittedChanges(t *testing.T) {
	s, dir := open(t), busy(t)
	before := look(t, dir)
	c := resolve(t, s, Source{Dir: dir})
	if diff := cmp.Diff(before, look(t, dir)); diff != "" {
		t.Errorf("the tree was written to:\n%s", diff)
	}
	noScratch(t, s)
	if want := "6.12.3-rc1, git " + dir + " at "; !strings.HasPrefix(c.Describe, want) {
		t.Errorf("%q does not begin with %q", c.Describe, want)
	}
	if want := `("net: the first"), with uncommitted changes in 16 files`; !strings.HasSuffix(c.Describe, want) {
		t.Errorf("%q does not end with %q", c.Describe, want)
	}

	// The real thing: git itself, in a copy.
	twin := filepath.Join(t.TempDir(), "twin")
	if out, err := exec.Command("cp", "-a", dir, twin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	head := userGit(t, twin, "rev-parse", "HEAD")
	userGit(t, twin, "add", "-A")
	if tree := userGit(t, twin, "write-tree"); tree != c.Tree {
		t.Errorf("git add -A gives another tree: %s", cmp.Diff(userGit(t, twin, "ls-files", "-s"), fmt.Sprint(content(t, s, c))))
	}
	if parent, err := s.line(context.Background(), Git{Objects: c.Objects}, "rev-parse", c.ID+"^"); err != nil || parent != head {
		t.Errorf("the commit stands on %s, HEAD is %s (%v)", parent, head, err)
	}
	if again := resolve(t, s, Source{Dir: dir}); again.ID != c.ID {
		t.Errorf("the same tree is now %s, before %s", again.ID, c.ID)
	}
}

func TestCleanTreeIsItsHead(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	before := look(t, dir)
	c := resolve(t, s, Source{Dir: dir})
	if head := userGit(t, dir, "rev-parse", "HEAD"); c.ID != head {
		t.Errorf("it is %s, HEAD is %s", c.ID, head)
	}
	if c.Version != kernelFilesVersion {
		t.Errorf("version %q", c.Version)
	}
	if diff := cmp.Diff(plain(kernelFiles), content(t, s, c)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, look(t, dir)); diff != "" {
		t.Errorf("the tree was written to:\n%s", diff)
	}

	// A changed time is no change of the content, and must not be written
	// into the user's index either.
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "Kconfig"), past, past); err != nil {
		t.Fatal(err)
	}
	before = look(t, dir)
	if again := resolve(t, s, Source{Dir: dir}); again.ID != c.ID || strings.Contains(again.Describe, "uncommitted") {
		t.Errorf("it is %+v", again)
	}
	if diff := cmp.Diff(before, look(t, dir)); diff != "" {
		t.Errorf("the tree was written to:\n%s", diff)
	}
}

func TestOneChangedFile(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	write(t, dir, map[string]string{"Kconfig": "changed\n"})
	if c := resolve(t, s, Source{Dir: dir}); !strings.HasSuffix(c.Describe, ", with uncommitted changes in 1 file") {
		t.Error(c.Describe)
	}
}

// A user's settings decide what a file's content is, as they do for the user.
func TestUsersSettings(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	userGit(t, dir, "config", "core.autocrlf", "input")
	userGit(t, dir, "config", "core.fileMode", "false")
	userGit(t, dir, "config", "filter.shout.clean", "tr a-z A-Z")
	write(t, dir, map[string]string{
		".gitattributes":    "*.loud filter=shout\n",
		".git/info/exclude": "private.c\n",
		"Kconfig":           "with\r\nreturns\r\n",
		"a.loud":            "quiet\n",
		"private.c":         "private\n",
	})
	if err := os.Chmod(filepath.Join(dir, "Makefile"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := plain(kernelFiles)
	want["Kconfig"] = "100644 with\nreturns\n"
	want["a.loud"] = "100644 QUIET\n"
	want[".gitattributes"] = "100644 *.loud filter=shout\n"
	if diff := cmp.Diff(want, content(t, s, resolve(t, s, Source{Dir: dir}))); diff != "" {
		t.Error(diff)
	}
}

// The user's hooks, fsmonitor and other programs are not ours to start, and
// the environment of a git command above us does not lead astray.
func TestUsersProgramsStayOff(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	trace := filepath.Join(t.TempDir(), "ran")
	for _, hook := range []string{"post-index-change", "reference-transaction", "post-checkout", "pre-commit"} {
		write(t, dir, map[string]string{".git/hooks/" + hook: "#!/bin/sh\necho " + hook + " >> '" + trace + "'\n"})
		if err := os.Chmod(filepath.Join(dir, ".git/hooks", hook), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	userGit(t, dir, "config", "core.fsmonitor", "echo fsmonitor >> '"+trace+"'; false")
	write(t, dir, map[string]string{"Kconfig": "changed\n"})
	t.Setenv("GIT_DIR", "/nowhere")
	t.Setenv("GIT_INDEX_FILE", "/nowhere")
	t.Setenv("GIT_WORK_TREE", "/nowhere")
	c, err := s.Resolve(context.Background(), Source{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, c)["Kconfig"]; got != "100644 changed\n" {
		t.Errorf("Kconfig is %q", got)
	}
	if ran, err := os.ReadFile(trace); err == nil {
		t.Errorf("these ran:\n%s", ran)
	}
}

func TestRevision(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	first := userGit(t, dir, "rev-parse", "HEAD")
	write(t, dir, map[string]string{"Makefile": "VERSION = 7\nPATCHLEVEL = 3\n"})
	userGit(t, dir, "commit", "-qam", "Linux 7.3")
	userGit(t, dir, "tag", "-am", "v7.3", "v7.3")
	second := userGit(t, dir, "rev-parse", "HEAD")
	write(t, dir, map[string]string{"Kconfig": "uncommitted\n"})
	bare := filepath.Join(t.TempDir(), "bare")
	userGit(t, dir, "clone", "-q", "--bare", dir, bare)
	linked := filepath.Join(t.TempDir(), "linked")
	userGit(t, dir, "worktree", "add", "-q", "--detach", linked, first)

	for _, c := range []struct{ dir, rev, id, version, say string }{
		{dir, "HEAD", second, "7.3", `at HEAD, ` + second[:7] + ` ("Linux 7.3")`},
		{dir, "v7.3", second, "7.3", "at v7.3, " + second[:7]},
		{dir, "HEAD~1", first, kernelFilesVersion, "at HEAD~1, "},
		{dir, first[:12], first, kernelFilesVersion, "at " + first[:7] + ` ("net: the first")`},
		{bare, "main", second, "7.3", "git " + bare + " at main"},
		{linked, "", first, kernelFilesVersion, "git " + linked + " at " + first[:7]},
		{linked, "main", second, "7.3", "at main"},
	} {
		before := look(t, c.dir)
		got := resolve(t, s, Source{Dir: c.dir, Rev: c.rev})
		if got.ID != c.id || got.Version != c.version || !strings.HasPrefix(got.Describe, c.version+", ") || !strings.Contains(got.Describe, c.say) {
			t.Errorf("%s of %s is %+v; want %+v", c.rev, c.dir, got, c)
		}
		if len(content(t, s, got)) != len(kernelFiles) {
			t.Errorf("%s of %s: files are missing", c.rev, c.dir)
		}
		if diff := cmp.Diff(before, look(t, c.dir)); diff != "" {
			t.Errorf("%s was written to:\n%s", c.dir, diff)
		}
	}

	wrong(t, s, Source{Dir: dir, Rev: "nosuch"}, fault.Configuration, "reading the kernel tree", dir, "git rev-parse")
	wrong(t, s, Source{Dir: dir, Rev: "--all"}, fault.Configuration, `"--all" is not a revision`)
	wrong(t, s, Source{Dir: bare}, fault.Configuration, "a repository without a work tree", "say which revision is meant")
	// A revision is a kernel tree or not, whatever lies in the folder now.
	userGit(t, dir, "rm", "-qf", "Kconfig")
	userGit(t, dir, "commit", "-qm", "no kernel")
	write(t, dir, map[string]string{"Kconfig": "back\n"})
	wrong(t, s, Source{Dir: dir, Rev: "HEAD"}, fault.Configuration, "no kernel tree", "name a revision of a kernel tree")
}

// Sparse and shallow trees are what many have of a kernel.
func TestShallowClone(t *testing.T) {
	s, origin := open(t), kernelRepo(t)
	write(t, origin, map[string]string{"Kconfig": "second\n"})
	userGit(t, origin, "commit", "-qam", "second")
	dir := filepath.Join(t.TempDir(), "shallow")
	userGit(t, origin, "clone", "-q", "--depth=1", "file://"+origin, dir)
	write(t, dir, map[string]string{"net/core/skmsg.c": "int changed;\n"})
	c := resolve(t, s, Source{Dir: dir})
	if got := content(t, s, c); got["Kconfig"] != "100644 second\n" || got["net/core/skmsg.c"] != "100644 int changed;\n" {
		t.Errorf("it holds %q", got)
	}
}

// Of a partial clone git would fetch what is missing, into the user's
// repository.
func TestPartialClone(t *testing.T) {
	s, origin := open(t), kernelRepo(t)
	first := userGit(t, origin, "rev-parse", "HEAD")
	write(t, origin, map[string]string{"Kconfig": "second\n"})
	userGit(t, origin, "commit", "-qam", "second")
	userGit(t, origin, "config", "uploadpack.allowFilter", "true")
	dir := filepath.Join(t.TempDir(), "partial")
	userGit(t, origin, "clone", "-q", "--filter=blob:none", "file://"+origin, dir)
	resolve(t, s, Source{Dir: dir})
	before := look(t, dir)
	wrong(t, s, Source{Dir: dir, Rev: first}, fault.Configuration, "partial clone", "1 objects of this revision", "fetch")
	if diff := cmp.Diff(before, look(t, dir)); diff != "" {
		t.Errorf("the clone was written to:\n%s", diff)
	}
}

func TestConflictAndNestedRepository(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	userGit(t, dir, "checkout", "-qb", "side")
	write(t, dir, map[string]string{"Kconfig": "side\n"})
	userGit(t, dir, "commit", "-qam", "side")
	userGit(t, dir, "checkout", "-q", "main")
	write(t, dir, map[string]string{"Kconfig": "main\n"})
	userGit(t, dir, "commit", "-qam", "main")
	merge := exec.Command("git", "-C", dir, "-c", "user.name=Ada", "-c", "user.email=a@example.org", "merge", "-q", "side")
	if out, err := merge.CombinedOutput(); err == nil {
		t.Fatalf("no conflict:\n%s", out)
	}
	write(t, dir, map[string]string{"inner/file": "of another repository\n"})
	userGit(t, filepath.Join(dir, "inner"), "init", "-q")
	before := look(t, dir)
	got := content(t, s, resolve(t, s, Source{Dir: dir}))
	if !strings.Contains(got["Kconfig"], "<<<<<<< HEAD\nmain\n=======\nside\n>>>>>>> side\n") {
		t.Errorf("Kconfig is %q", got["Kconfig"])
	}
	if len(got) != len(kernelFiles) {
		t.Errorf("it holds %q", got)
	}
	if diff := cmp.Diff(before, look(t, dir)); diff != "" {
		t.Errorf("the tree was written to:\n%s", diff)
	}
}

func TestPlainFiles(t *testing.T) {
	s, dir := open(t), kernelDir(t)
	write(t, dir, map[string]string{
		".gitignore":       "/*\n*.o\n",
		"net/core/skmsg.o": "built\n", "vmlinux": "built\n", ".config": "CONFIG_X=y\n", ".tmp_a/b": "built\n",
	})
	before := look(t, dir)
	c := resolve(t, s, Source{Dir: dir})
	if diff := cmp.Diff(before, look(t, dir)); diff != "" {
		t.Errorf("the folder was written to:\n%s", diff)
	}
	want := plain(kernelFiles)
	want[".gitignore"] = "100644 /*\n*.o\n"
	if diff := cmp.Diff(want, content(t, s, c)); diff != "" {
		t.Error(diff)
	}
	if want := kernelFilesVersion + ", files in " + dir; c.Describe != want {
		t.Errorf("%q, want %q", c.Describe, want)
	}

	// The kept index must neither hide a change nor live on when broken.
	write(t, dir, map[string]string{"net/core/skmsg.c": "int other;\n"})
	if err := os.Remove(filepath.Join(dir, "Kconfig")); err != nil {
		t.Fatal(err)
	}
	wrong(t, s, Source{Dir: dir}, fault.Configuration, "no kernel tree")
	write(t, dir, map[string]string{"Kconfig": "again\n"})
	want["net/core/skmsg.c"], want["Kconfig"] = "100644 int other;\n", "100644 again\n"
	if diff := cmp.Diff(want, content(t, s, resolve(t, s, Source{Dir: dir}))); diff != "" {
		t.Error(diff)
	}
	kept, _ := filepath.Glob(filepath.Join(s.cache, "plain", "*.index"))
	if len(kept) != 1 {
		t.Fatalf("kept: %q", kept)
	}
	for _, broken := range []string{"", "DIRC", "no index at all, but longer than a header is"} {
		if err := os.WriteFile(kept[0], []byte(broken), 0o666); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, content(t, s, resolve(t, s, Source{Dir: dir}))); diff != "" {
			t.Errorf("index %q: %s", broken, diff)
		}
	}
}

// Many new files are stored as one pack; what comes out is the same.
func TestManyFiles(t *testing.T) {
	s, dir := open(t), kernelDir(t)
	want := plain(kernelFiles)
	many := map[string]string{}
	for i := range manyFiles {
		many[fmt.Sprintf("many/%d/f%d.c", i%7, i)] = strings.Repeat("x", i)
	}
	many["binary"] = string(bytes.Repeat([]byte{0, 1, 2, '\n', 0xff}, 1000))
	write(t, dir, many)
	maps.Copy(want, plain(many))
	if diff := cmp.Diff(want, content(t, s, resolve(t, s, Source{Dir: dir}))); diff != "" {
		t.Error(diff)
	}
	packs, _ := filepath.Glob(filepath.Join(s.dir, "objects/pack/*.pack"))
	if len(packs) != 1 {
		t.Errorf("packs: %q", packs)
	}
	noScratch(t, s)
}

func TestNoKernelFolder(t *testing.T) {
	s := open(t)
	wrong(t, s, Source{}, fault.Configuration, "no base, folder or tarball is named")
	missing := filepath.Join(t.TempDir(), "missing")
	wrong(t, s, Source{Dir: missing}, fault.Configuration, missing, "no such file")
	file := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(file), map[string]string{"file": "text"})
	wrong(t, s, Source{Dir: file}, fault.Configuration, "not a folder")
	wrong(t, s, Source{Dir: t.TempDir()}, fault.Configuration, "no kernel tree")
	wrong(t, s, Source{Dir: kernelDir(t), Rev: "HEAD"}, fault.Configuration, "not the top of a git repository")
	wrong(t, s, Source{Dir: filepath.Join(kernelRepo(t), "net")}, fault.Configuration, "no kernel tree")
	for _, makefile := range []string{"", "VERSION = 6\n", "VERSION =\nPATCHLEVEL = 1\n", "all:\n\tVERSION = 6\n"} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"Kconfig": "", "Makefile": makefile})
		wrong(t, s, Source{Dir: dir}, fault.Configuration, "no kernel tree")
	}
	unborn := kernelDir(t)
	userGit(t, unborn, "init", "-q")
	wrong(t, s, Source{Dir: unborn}, fault.Configuration, "commit something there first")
	sha256 := kernelDir(t)
	userGit(t, sha256, "init", "-q", "--object-format=sha256")
	wrong(t, s, Source{Dir: sha256}, fault.Configuration, "only sha1 is supported")
	nothingLeft(t, s)
}

// Two at once, in one cache, each with a tree of its own and one in common.
func TestTogether(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "a cache")
	shared := busy(t)
	own := make([]string, 4)
	for i := range own {
		own[i] = kernelDir(t)
		many := map[string]string{}
		for j := range manyFiles {
			many[fmt.Sprintf("%d/%d.c", i, j)] = fmt.Sprintf("%d of %d\n", j, i)
		}
		write(t, own[i], many)
	}
	ids := make([]string, len(own))
	var all sync.WaitGroup
	for i := range own {
		all.Go(func() {
			s, err := Open(context.Background(), cache, nil)
			if err != nil {
				t.Error(err)
				return
			}
			c, err := s.Resolve(context.Background(), Source{Dir: shared})
			if err != nil {
				t.Error(err)
			}
			ids[i] = c.ID
			c, err = s.Resolve(context.Background(), Source{Dir: own[i]})
			if err != nil {
				t.Error(err)
				return
			}
			dir := filepath.Join(cache, fmt.Sprint("checkout", i))
			if err := s.Checkout(context.Background(), c, dir); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d/17.c", i))); err != nil || string(got) != fmt.Sprintf("17 of %d\n", i) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Errorf("the same tree is %q", ids)
		}
	}
}
