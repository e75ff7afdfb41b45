// SPDX-License-Identifier: MIT

package tree

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"patchbay/harness/internal/progress"
)

// fastImport is a running `git fast-import` on the store. What is written to
// it becomes part of the store only with finish.
type fastImport struct {
	*bufio.Writer
	how  Git
	ctx  context.Context
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// fastImport starts one. The caller holds the import lock and passes it on.
func (s *Store) fastImport(ctx context.Context, hold *os.File) (*fastImport, error) {
	f := &fastImport{how: Git{Repository: s.dir, hold: hold}, ctx: ctx}
	f.sweep()
	// No deltas: neighbouring files of a kernel have little in common, and
	// trying costs more time than the space is worth.
	f.cmd = f.how.command(ctx, "fast-import", "--quiet", "--done", "--force", "--depth=0", "--date-format=raw")
	pipe, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	f.pipe, f.Writer = pipe, bufio.NewWriterSize(pipe, 1<<20)
	return f, nil
}

// finish makes what was written part of the store.
func (f *fastImport) finish() error {
	_, err := f.WriteString("done\n")
	if err == nil {
		err = f.Flush()
	}
	f.pipe.Close()
	// What git said is worth more than the broken pipe.
	if waited := f.how.finish(f.ctx, f.cmd, f.cmd.Wait()); waited != nil {
		return waited
	}
	return err
}

// sweep removes what a failed or killed import leaves behind.
func (f *fastImport) sweep() {
	for _, pattern := range []string{"objects/pack/tmp_*", "fast_import_crash_*"} {
		left, _ := filepath.Glob(filepath.Join(quoteGlob(f.how.Repository), pattern))
		for _, path := range left {
			os.Remove(path)
		}
	}
}

// abandon ends it without a trace, and returns what git said if it had
// already given up by itself.
func (f *fastImport) abandon() error {
	// Without "done" git takes the end of its input for an error.
	f.pipe.Close()
	err := f.how.finish(f.ctx, f.cmd, f.cmd.Wait())
	f.sweep()
	var g *GitError
	if errors.As(err, &g) && strings.Contains(g.Stderr, "stream ends early") {
		return nil
	}
	return err
}

func (f *fastImport) data(size int64, from io.Reader) error {
	fmt.Fprintf(f, "data %d\n", size)
	n, err := io.Copy(f, io.LimitReader(from, size))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = f.WriteByte('\n')
	}
	return err
}

// packFiles stores the files' contents as one pack.
func (s *Store) packFiles(ctx context.Context, dir string, files []string) error {
	lock, err := s.lock(ctx, "import")
	if err != nil {
		return err
	}
	defer lock.Close()
	f, err := s.fastImport(ctx, lock)
	if err != nil {
		return err
	}
	for i, name := range files {
		if i%1000 == 0 {
			s.news.Send(progress.Event{Step: "import", State: progress.Running, Done: i, Total: len(files), Detail: dir})
		}
		if err := f.file(filepath.Join(dir, name)); err != nil {
			if said := f.abandon(); said != nil {
				return said
			}
			return err
		}
	}
	return f.finish()
}

// file stores a regular file's content. Others are small, and left to git.
func (f *fastImport) file(path string) error {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if _, err := f.WriteString("blob\n"); err != nil {
		return err
	}
	return f.data(info.Size(), in)
}

// importTar imports a tar stream and sets ref to the commit, at the very end.
// title is the commit's subject; verify is called after the last byte and has
// the last word. The caller holds the import lock.
func (s *Store) importTar(ctx context.Context, hold *os.File, ref, title string, r io.Reader, verify func() error) (string, error) {
	s.news.Send(progress.Event{Step: "import", State: progress.Started, Detail: title})
	id, files, err := s.importFiles(ctx, hold, ref, title, r, verify)
	if err != nil {
		s.news.Send(progress.Event{Step: "import", State: progress.Failed, Done: files, Detail: title})
		return "", err
	}
	s.news.Send(progress.Event{Step: "import", State: progress.Finished, Done: files, Total: files, Detail: title})
	return id, nil
}

func (s *Store) importFiles(ctx context.Context, hold *os.File, ref, title string, r io.Reader, verify func() error) (id string, files int, err error) {
	f, err := s.fastImport(ctx, hold)
	if err != nil {
		return "", 0, err
	}
	const raw = "refs/importing/raw"
	fmt.Fprintf(f, "commit %s\ncommitter %s <%s> %s\ndata 0\n", raw, identity, identity, epoch)
	files, err = s.writeTar(f, title, r)
	if err == nil {
		err = verify()
	} else if closed := verify(); closed != nil {
		// A program that unpacks knows better why the stream is broken.
		err = closed
	}
	if err != nil {
		if said := f.abandon(); said != nil {
			err = said
		}
		return "", files, err
	}
	if err := f.finish(); err != nil {
		return "", files, err
	}
	id, err = s.publish(ctx, raw, ref, title)
	return id, files, err
}

// publish commits the folder that the tarball consists of, or all of it if
// there is no such folder, and sets ref to that.
func (s *Store) publish(ctx context.Context, raw, ref, title string) (id string, err error) {
	defer func() {
		_, deleted := s.Git(ctx, Git{}, "update-ref", "-d", raw)
		if err == nil {
			err = deleted
		}
	}()
	top := raw + "^{tree}"
	listed, err := s.Git(ctx, Git{}, "ls-tree", "-z", top)
	if err != nil {
		return "", err
	}
	if entries := bytes.Split(bytes.TrimSuffix(listed, []byte{0}), []byte{0}); len(entries) == 1 {
		if fields := bytes.Fields(entries[0]); len(fields) > 2 && string(fields[1]) == "tree" {
			top = string(fields[2])
		}
	}
	if top, err = s.line(ctx, Git{}, "rev-parse", "--verify", top); err != nil {
		return "", err
	}
	if _, err := s.kernelTree(ctx, top, nil); err != nil {
		return "", err
	}
	if id, err = s.line(ctx, Git{}, "commit-tree", "-m", title, top); err != nil {
		return "", err
	}
	_, err = s.Git(ctx, Git{}, "update-ref", ref, id)
	return id, err
}

// writeTar writes a tar stream's files as changes of a commit.
func (s *Store) writeTar(f *fastImport, title string, r io.Reader) (files int, err error) {
	end := &endWatch{r: r}
	t := tar.NewReader(end)
	told := time.Now()
	for {
		h, err := t.Next()
		if err == io.EOF {
			if end.seen {
				return files, errors.New("it is cut off: the mark at the end of a tar archive is missing")
			}
			// What follows the mark is padding, but unpacking must get to
			// its checksum.
			_, err := io.Copy(io.Discard, r)
			return files, err
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return files, errors.New("it is cut off")
		}
		if err != nil {
			return files, err
		}
		if err := f.entry(t, h); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("it is cut off")
			}
			return files, err
		}
		files++
		if files%500 == 0 && time.Since(told) > 200*time.Millisecond {
			told = time.Now()
			s.news.Send(progress.Event{Step: "import", State: progress.Running, Done: files, Detail: title})
		}
	}
}

func (f *fastImport) entry(t *tar.Reader, h *tar.Header) error {
	if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := inside(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		mode := "100644"
		if h.Mode&0o100 != 0 {
			mode = "100755"
		}
		fmt.Fprintf(f, "M %s inline %s\n", mode, quoteC(name))
		return f.data(h.Size, t)
	case tar.TypeSymlink:
		if path.IsAbs(h.Linkname) || escapes(path.Join(path.Dir(name), h.Linkname)) {
			return fmt.Errorf("the link %q points out of the archive, to %q", h.Name, h.Linkname)
		}
		fmt.Fprintf(f, "M 120000 inline %s\n", quoteC(name))
		return f.data(int64(len(h.Linkname)), strings.NewReader(h.Linkname))
	case tar.TypeLink:
		target, err := inside(h.Linkname)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "C %s %s\n", quoteC(target), quoteC(name))
		return err
	default:
		return fmt.Errorf("%q is neither a file nor a link", h.Name)
	}
}

func escapes(clean string) bool { return clean == ".." || strings.HasPrefix(clean, "../") }

// inside checks that a name in an archive stays in it.
func inside(name string) (string, error) {
	clean := path.Clean(name)
	if path.IsAbs(clean) || escapes(clean) || clean == "." {
		return "", fmt.Errorf("%q would lie outside", name)
	}
	for part := range strings.SplitSeq(clean, "/") {
		if strings.EqualFold(part, ".git") {
			return "", fmt.Errorf("%q cannot be kept in git", name)
		}
	}
	return clean, nil
}

// endWatch notes whether the reader was read to its end.
type endWatch struct {
	r    io.Reader
	seen bool
}

func (e *endWatch) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err == io.EOF {
		e.seen = true
	}
	return n, err
}
