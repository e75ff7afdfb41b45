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

// fastImport is a running `git fast-import`. It writes to a repository of its
// own, beside the store: git keeps what it has read even when it fails, and a
// kernel that was cut off should not stay in the store for good. What was
// written gets there with keep; drop is called in any case.
type fastImport struct {
	*bufio.Writer
	store *Store
	how   Git
	ctx   context.Context
	cmd   *exec.Cmd
	pipe  io.WriteCloser
	ended bool
}

// importConfig makes git store even the smallest import as a pack, which can
// be moved.
const importConfig = storeConfig + `[fastimport]
	unpacklimit = 0
`

// fastImport starts one. The caller holds the import lock, which is passed on:
// so there is never more than one, and what a killed one left is removed here.
func (s *Store) fastImport(ctx context.Context, hold *os.File) (*fastImport, error) {
	dir := filepath.Join(s.cache, "tmp", "import")
	f := &fastImport{store: s, how: Git{Repository: dir, hold: hold}, ctx: ctx}
	err := os.RemoveAll(dir)
	for _, name := range []string{"objects/pack", "refs"} {
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, name), 0o777)
		}
	}
	for name, text := range map[string]string{"config": importConfig, "HEAD": "ref: refs/heads/none\n"} {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666)
		}
	}
	if err != nil {
		return nil, cannotWrite(dir, err)
	}
	// No deltas: neighbouring files of a kernel have little in common, and
	// trying costs more time than the space is worth.
	f.cmd = f.how.command(ctx, "fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw")
	pipe, err := f.cmd.StdinPipe()
	if err == nil {
		err = f.cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	f.pipe, f.Writer = pipe, bufio.NewWriterSize(pipe, 1<<20)
	return f, nil
}

// finish ends the import. What was written can then be looked at, with how.
func (f *fastImport) finish() error {
	_, err := f.WriteString("done\n")
	if err == nil {
		err = f.Flush()
	}
	f.pipe.Close()
	f.ended = true
	// What git said is worth more than the broken pipe.
	if waited := f.how.finish(f.ctx, f.cmd, f.cmd.Wait()); waited != nil {
		return waited
	}
	return err
}

// keep makes what was written part of the store.
func (f *fastImport) keep() error {
	from, to := filepath.Join(f.how.Repository, "objects/pack"), filepath.Join(f.store.dir, "objects/pack")
	if err := os.MkdirAll(to, 0o777); err != nil {
		return cannotWrite(to, err)
	}
	// Git looks for the index, and takes the others for granted then.
	for _, kind := range []string{".pack", ".rev", ".idx"} {
		files, _ := filepath.Glob(filepath.Join(quoteGlob(from), "*"+kind))
		for _, file := range files {
			if err := os.Rename(file, filepath.Join(to, filepath.Base(file))); err != nil {
				return cannotWrite(to, err)
			}
		}
	}
	return nil
}

// drop removes what is not kept. If the import had not been ended, it returns
// what git said if it had already given up by itself.
func (f *fastImport) drop() (said error) {
	if !f.ended {
		f.cmd.Process.Kill()
		f.pipe.Close()
		said = f.how.finish(f.ctx, f.cmd, f.cmd.Wait())
		var g *GitError
		if errors.As(said, &g) && g.Stderr == "" {
			said = nil // it was we who ended it
		}
	}
	os.RemoveAll(f.how.Repository)
	return said
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
			if said := f.drop(); said != nil {
				return said
			}
			return err
		}
	}
	defer f.drop()
	if err := f.finish(); err != nil {
		return err
	}
	return f.keep()
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
	const raw = "refs/heads/raw"
	fmt.Fprintf(f, "commit %s\ncommitter %s <%s> %s\ndata 0\n", raw, identity, identity, epoch)
	files, err = s.writeTar(f, title, r)
	if err == nil {
		err = verify()
	} else if closed := verify(); closed != nil {
		// A program that unpacks knows better why the stream is broken.
		err = closed
	}
	if err != nil {
		if said := f.drop(); said != nil {
			err = said
		}
		return "", files, err
	}
	defer f.drop()
	if err := f.finish(); err != nil {
		return "", files, err
	}
	top, err := kernelTop(ctx, f.how, raw+"^{tree}")
	if err == nil {
		err = f.keep()
	}
	if err == nil {
		id, err = s.line(ctx, Git{}, "commit-tree", "-m", title, top)
	}
	if err == nil {
		_, err = s.Git(ctx, Git{}, "update-ref", ref, id)
	}
	return id, files, err
}

// kernelTop returns the kernel tree that an archive's tree consists of: the
// only folder in it, or all of it if there is no such folder.
func kernelTop(ctx context.Context, how Git, top string) (string, error) {
	listed, err := how.Run(ctx, "ls-tree", "-z", top)
	if err != nil {
		return "", err
	}
	if entries := bytes.Split(bytes.TrimSuffix(listed, []byte{0}), []byte{0}); len(entries) == 1 {
		if fields := bytes.Fields(entries[0]); len(fields) > 2 && string(fields[1]) == "tree" {
			top = string(fields[2])
		}
	}
	if top, err = how.line(ctx, "rev-parse", "--verify", top); err != nil {
		return "", err
	}
	_, err = kernelTree(ctx, how, top)
	return top, err
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

// endWatch notes whether the reader was read beyond its last byte.
type endWatch struct {
	r    io.Reader
	seen bool
}

func (e *endWatch) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	// Some readers tell of the end together with the last bytes, which may
	// be the mark.
	if n == 0 && err == io.EOF {
		e.seen = true
	}
	return n, err
}
