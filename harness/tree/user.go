// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
)

// A user's tree is read and never written to. Git would write in more ways
// than one thinks: it refreshes the index, renews the time of a shared index
// that it reads, and renews the time of an object or pack when told to store
// what is already in it. So every command that could do any of that runs with
// a repository of our own, in the cache, whose HEAD, index and settings are
// copies, and which does not see the user's objects.

// repo is a user's git repository.
type repo struct {
	git    string // the git folder of this work tree
	common string // the one that linked work trees share
	work   string // the work tree, or "" if bare
}

func (r repo) objects() []string { return []string{filepath.Join(r.common, "objects")} }

// read is how commands that only read run in the user's repository.
func (r repo) read() Git { return Git{Repository: r.git} }

// openRepo returns the repository at dir, or nil if dir is not one.
func openRepo(ctx context.Context, dir string) (*repo, error) {
	r := &repo{}
	if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
		r.git, r.work = filepath.Join(dir, ".git"), dir
	} else if _, err := os.Stat(filepath.Join(dir, "HEAD")); err == nil {
		if _, err := os.Stat(filepath.Join(dir, "objects")); err != nil {
			return nil, nil
		}
		r.git = dir
	} else {
		return nil, nil
	}
	out, err := r.read().line(ctx, "rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir", "--show-object-format")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(out, "\n")
	if len(lines) != 3 {
		return nil, fmt.Errorf("git rev-parse said %q", out)
	}
	if lines[2] != "sha1" {
		return nil, fmt.Errorf("it names objects by %s; only sha1 is supported", lines[2])
	}
	r.git, r.common = lines[0], lines[1]
	return r, nil
}

// fromDir resolves a folder: a git tree with or without a revision, or plain files.
func (s *Store) fromDir(ctx context.Context, dir, rev string) (Commit, error) {
	wrong := func(err error, next string) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var e *fault.Error
		if errors.As(err, &e) {
			return err
		}
		return &fault.Error{Blame: fault.Configuration, Doing: "reading the kernel tree", Subject: dir, Err: err, Next: next}
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return Commit{}, wrong(err, "")
	}
	if info, err := os.Stat(path); err != nil {
		return Commit{}, wrong(err, "name a folder with kernel sources")
	} else if !info.IsDir() {
		return Commit{}, wrong(errors.New("it is not a folder"), "name a folder with kernel sources")
	}
	r, err := openRepo(ctx, path)
	if err != nil {
		return Commit{}, wrong(err, "see what git says in that folder")
	}
	switch {
	case rev != "" && r == nil:
		return Commit{}, wrong(fmt.Errorf("revision %s: it is not the top of a git repository", rev), "name the repository's top folder, or leave the revision out")
	case rev == "" && r != nil && r.work == "":
		return Commit{}, wrong(errors.New("it is a repository without a work tree"), "say which revision is meant")
	case rev == "":
		if _, err := kernelFolder(path); err != nil {
			return Commit{}, wrong(err, "name the top folder of a kernel tree")
		}
	}
	if r == nil {
		c, err := s.snapshot(ctx, path, nil, "")
		return c, wrongUnless(wrong, err)
	}

	name := rev
	if name == "" {
		name = "HEAD"
	}
	if strings.HasPrefix(name, "-") {
		return Commit{}, wrong(fmt.Errorf("%q is not a revision", rev), "name a commit, a branch or a tag")
	}
	id, err := r.read().line(ctx, "rev-parse", "--verify", name+"^{commit}")
	if err != nil {
		next := "see git log in that folder for the revisions that it has"
		if rev == "" {
			next = "commit something there first"
		}
		return Commit{}, wrong(err, next)
	}
	said, err := r.read().line(ctx, "log", "-1", "--no-show-signature", "--format=%h (\"%s\")", id, "--")
	if err != nil {
		return Commit{}, wrong(err, "")
	}
	describe := "git " + path + " at " + said
	if rev != "" && !strings.HasPrefix(id, rev) {
		describe = "git " + path + " at " + rev + ", " + said
	}
	if err := s.complete(ctx, r, id); err != nil {
		return Commit{}, wrong(err, "fetch the missing objects, by `git checkout` of that revision for one")
	}
	var c Commit
	if rev == "" {
		c, err = s.snapshot(ctx, path, r, id)
	} else {
		c, err = s.Commit(ctx, id, "", r.objects())
	}
	if err != nil {
		return Commit{}, wrong(err, "name a revision of a kernel tree")
	}
	c.Describe = c.Version + ", " + describe + c.Describe
	return c, nil
}

func wrongUnless(wrong func(error, string) error, err error) error {
	if err == nil {
		return nil
	}
	return wrong(err, "")
}

// complete says whether all objects of a commit's tree are there. Only a
// partial clone leaves some on its server, and there git would fetch them,
// into the user's repository.
func (s *Store) complete(ctx context.Context, r *repo, id string) error {
	if _, err := r.read().Run(ctx, "config", "--get-regexp", `^(remote\..*\.promisor|extensions\.partialclone)$`); err != nil {
		return ctx.Err()
	}
	out, err := s.Git(ctx, Git{Objects: r.objects()}, "rev-list", "--objects", "--no-walk", "--missing=print", id)
	if err != nil {
		return err
	}
	if n := bytes.Count(append([]byte{'\n'}, out...), []byte("\n?")); n > 0 {
		return fmt.Errorf("it is a partial clone, and %d objects of this revision are not there", n)
	}
	return nil
}

// keptSettings are the settings that decide what git takes a file's content to
// be and which files it leaves out.
var keptSettings = regexp.MustCompile(`^(core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|safecrlf|checkstat|trustctime|excludesfile|attributesfile|sparsecheckout|sparsecheckoutcone)|filter\..*)$`)

// mirror makes a git folder of our own that stands for the user's: same HEAD,
// same settings as far as they matter, copies of index and exclude files.
func (s *Store) mirror(ctx context.Context, r *repo, head, into string) error {
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\thookspath = /dev/null\n\tlogallrefupdates = false\n\tfsmonitor = false\n\tuntrackedcache = false\n[gc]\n\tauto = 0\n"
	if head == "" {
		head = "ref: refs/heads/none"
	}
	for _, dir := range []string{"objects", "refs", "info"} {
		if err := os.MkdirAll(filepath.Join(into, dir), 0o777); err != nil {
			return cannotWrite(into, err)
		}
	}
	if r != nil {
		read := r.read()
		read.own = true
		out, err := read.Run(ctx, "config", "--includes", "--list", "-z")
		if err != nil {
			return err
		}
		config += settings(out)
		copies := []string{"index", "info/sparse-checkout"}
		shared, _ := filepath.Glob(filepath.Join(quoteGlob(r.git), "sharedindex.*"))
		for _, path := range shared {
			copies = append(copies, filepath.Base(path))
		}
		for _, name := range copies {
			if err := copyFile(filepath.Join(r.git, name), filepath.Join(into, name)); err != nil {
				return err
			}
		}
		for _, name := range []string{"info/exclude", "info/attributes", "shallow"} {
			if err := copyFile(filepath.Join(r.common, name), filepath.Join(into, name)); err != nil {
				return err
			}
		}
	}
	for name, text := range map[string]string{"config": config, "HEAD": head + "\n"} {
		if err := os.WriteFile(filepath.Join(into, name), []byte(text), 0o666); err != nil {
			return cannotWrite(into, err)
		}
	}
	return nil
}

// settings renders what `git config --list -z` printed, as far as it is kept.
func settings(listed []byte) string {
	var b strings.Builder
	for _, entry := range bytes.Split(listed, []byte{0}) {
		key, value, valued := strings.Cut(string(entry), "\n")
		if !keptSettings.MatchString(key) {
			continue
		}
		section, rest, _ := strings.Cut(key, ".")
		if i := strings.LastIndexByte(rest, '.'); i >= 0 {
			section += " " + quoteC(rest[:i])
			rest = rest[i+1:]
		}
		fmt.Fprintf(&b, "[%s]\n\t%s", section, rest)
		if valued {
			value = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(value)
			fmt.Fprintf(&b, ` = "%s"`, value)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// quoteGlob makes a path stand for itself in a glob pattern.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// copyFile copies a file, if it is there, with its time of change: by that
// time of an index git tells which entries it must not trust.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return cannotWrite(to, err)
	}
	_, err = io.Copy(out, in)
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Chtimes(to, info.ModTime(), info.ModTime())
	}
	if err != nil {
		return cannotWrite(to, err)
	}
	return nil
}

// change is a path whose file differs from the index.
type change struct {
	path    string
	removed bool
}

// gitChanges returns what differs from the index in a work tree, and how many
// paths differ from HEAD.
func gitChanges(ctx context.Context, how Git) (todo []change, dirty int, err error) {
	status, err := how.Run(ctx, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all")
	if err != nil {
		return nil, 0, err
	}
	for _, entry := range strings.Split(string(status), "\x00") {
		if len(entry) < 4 {
			continue
		}
		x, y, path := entry[0], entry[1], entry[3:]
		if strings.HasSuffix(path, "/") {
			// Another repository inside this one is no part of it.
			continue
		}
		dirty++
		if y == ' ' {
			continue
		}
		// Unmerged paths carry letters in both columns that need not fit
		// the file on disk; update-index looks for itself.
		todo = append(todo, change{path, y == 'D' && strings.IndexByte("UAD", x) < 0})
	}
	return todo, dirty, nil
}

// plainIgnored are the files of a folder of plain kernel sources that are left
// out, besides those that the .gitignore files in it name. The first pattern
// takes back that the .gitignore of Debian's sources names everything at the
// top; so what a build leaves at the top must be named here.
var plainIgnored = []string{
	"!/*", "!.gitignore", "!.kunitconfig",
	"/.git", "/.config", "/.config.old", "/.tmp_*", "/.version", "/.missing-syscalls.d", "/.*.cmd",
	"/*.o", "/*.a", "/vmlinux*", "/.vmlinux*", "/System.map", "/Module.symvers", "/modules.*", "/modules-only.symvers",
}

// plainChanges is gitChanges for plain files, which have no HEAD.
func plainChanges(ctx context.Context, how Git) ([]change, error) {
	ignore := []string{"--exclude-per-directory=.gitignore"}
	for _, pattern := range plainIgnored {
		ignore = append(ignore, "--exclude="+pattern)
	}
	var todo []change
	seen := map[string]bool{}
	// Removed files are also listed as modified, so they are asked for first.
	for _, what := range [][]string{{"--deleted"}, {"--modified"}, append(ignore, "--others")} {
		out, err := how.Run(ctx, append([]string{"ls-files", "-z"}, what...)...)
		if err != nil {
			return nil, err
		}
		for _, path := range strings.Split(string(out), "\x00") {
			if path != "" && !strings.HasSuffix(path, "/") && !seen[path] {
				seen[path] = true
				todo = append(todo, change{path, what[0] == "--deleted"})
			}
		}
	}
	return todo, nil
}

// manyFiles is from how many changed files on they are stored as one pack
// first: as single objects a whole kernel would take minutes.
const manyFiles = 500

// snapshot makes a commit of what is in a folder, on top of head; head itself
// if nothing differs. Describe holds only what is to be said of the changes.
func (s *Store) snapshot(ctx context.Context, dir string, r *repo, head string) (Commit, error) {
	scratch, err := s.TempDir()
	if err != nil {
		return Commit{}, err
	}
	defer os.RemoveAll(scratch)
	if err := s.mirror(ctx, r, head, scratch); err != nil {
		return Commit{}, err
	}
	var objects []string
	kept := ""
	index := filepath.Join(scratch, "index")
	if r != nil {
		objects = r.objects()
	} else {
		// Plain files have no index; ours is kept so that next time only
		// changed files are read.
		sum := sha256.Sum256([]byte(dir))
		kept = filepath.Join(s.cache, "plain", hex.EncodeToString(sum[:12])+".index")
		if err := copyFile(kept, index); err != nil {
			return Commit{}, err
		}
	}
	how := Git{Repository: scratch, Dir: dir, WorkTree: dir, Index: index, storing: filepath.Join(s.dir, "objects")}
	see := how
	see.Objects = objects
	var todo []change
	dirty := 0
	if r == nil {
		todo, err = plainChanges(ctx, see)
		if err != nil && ctx.Err() == nil {
			// The kept index may be broken, by a full disk for one; it
			// only saves time.
			os.Remove(index)
			todo, err = plainChanges(ctx, see)
		}
	} else {
		todo, dirty, err = gitChanges(ctx, see)
	}
	if err != nil {
		return Commit{}, err
	}
	if dirty == 0 && head != "" {
		return s.Commit(ctx, head, "", objects)
	}

	s.news.Send(progress.Event{Step: "import", State: progress.Started, Total: len(todo), Detail: dir})
	c, err := s.commitChanges(ctx, how, todo, head, objects)
	if err != nil {
		s.news.Send(progress.Event{Step: "import", State: progress.Failed, Detail: dir})
		return Commit{}, err
	}
	if kept != "" {
		if err := os.MkdirAll(filepath.Dir(kept), 0o777); err != nil {
			return Commit{}, cannotWrite(kept, err)
		}
		if err := os.Rename(index, kept); err != nil {
			return Commit{}, cannotWrite(kept, err)
		}
		c.Describe = c.Version + ", files in " + dir
	} else {
		c.Describe = fmt.Sprintf(", with uncommitted changes in %d files", dirty)
		if dirty == 1 {
			c.Describe = ", with uncommitted changes in 1 file"
		}
	}
	s.news.Send(progress.Event{Step: "import", State: progress.Finished, Done: len(todo), Total: len(todo), Detail: dir})
	return c, nil
}

// commitChanges brings the changed files into the index and the store, and
// commits the index.
func (s *Store) commitChanges(ctx context.Context, how Git, todo []change, head string, objects []string) (Commit, error) {
	if head != "" {
		top, err := s.line(ctx, Git{Objects: objects}, "rev-parse", "--verify", head+"^{tree}")
		if err != nil {
			return Commit{}, err
		}
		if err := s.Adopt(ctx, Commit{ID: head, Tree: top, Describe: head, Objects: objects}); err != nil {
			return Commit{}, err
		}
	}
	var gone, changed bytes.Buffer
	var files []string
	for _, c := range todo {
		if c.removed {
			gone.WriteString(c.path + "\x00")
		} else {
			changed.WriteString(c.path + "\x00")
			files = append(files, c.path)
		}
	}
	if len(files) >= manyFiles {
		if err := s.packFiles(ctx, how.Dir, files); err != nil {
			return Commit{}, err
		}
	}
	// Removals first: a file may have become a folder.
	how.Stdin = &gone
	if _, err := how.Run(ctx, "update-index", "-z", "--force-remove", "--stdin"); err != nil {
		return Commit{}, err
	}
	how.Stdin = &changed
	if _, err := how.Run(ctx, "update-index", "-z", "--add", "--remove", "--replace", "--stdin"); err != nil {
		return Commit{}, err
	}
	how.Stdin = nil
	// The blobs of unchanged files are where they are: in the user's objects.
	top, err := how.line(ctx, "write-tree", "--missing-ok")
	if err != nil {
		return Commit{}, err
	}
	args := []string{"commit-tree", "-m", "uncommitted changes", top}
	if head != "" {
		args = append(args, "-p", head)
	}
	id, err := s.line(ctx, Git{}, args...)
	if err != nil {
		return Commit{}, err
	}
	return s.Commit(ctx, id, "", objects)
}
