// SPDX-License-Identifier: MIT

package guest

import (
	"bufio"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"

	"patchbay/harness/internal/fault"
)

// File is one program or data file that the guest is given.
type File struct {
	// Path is where the guest finds it, Source where the host has it.
	Path, Source string
}

// WriteInitrd writes an uncompressed initramfs with the agent as /init and the
// given files, all executable. It is everything that the guest can see.
func WriteInitrd(target, agent string, files []File) error {
	if err := writeInitrd(target, append([]File{{Path: "/init", Source: agent}}, files...)); err != nil {
		os.Remove(target)
		return &fault.Error{
			Blame: fault.Harness, Doing: "writing the initramfs", Subject: target, Err: err,
			Next: "check that bin/patchbay-agent is built (make build) and that there is room for some 30 MB",
		}
	}
	return nil
}

func writeInitrd(target string, files []File) error {
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	defer out.Close()
	buffered := bufio.NewWriterSize(out, 1<<20)
	w := cpio.NewWriter(buffered)
	made := map[string]bool{}
	for _, f := range files {
		if err := addDirs(w, made, path.Dir(path.Clean("/"+f.Path))); err != nil {
			return err
		}
		if err := addFile(w, f); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	return out.Close()
}

// addDirs adds dir and its parents: the kernel does not make them by itself.
func addDirs(w *cpio.Writer, made map[string]bool, dir string) error {
	var missing []string
	for ; dir != "/" && !made[dir]; dir = path.Dir(dir) {
		missing = append(missing, dir)
		made[dir] = true
	}
	slices.Reverse(missing)
	for _, d := range missing {
		if err := w.WriteHeader(&cpio.Header{Name: strings.TrimPrefix(d, "/"), Mode: cpio.TypeDir | 0o755, Links: 2}); err != nil {
			return err
		}
	}
	return nil
}

func addFile(w *cpio.Writer, f File) error {
	in, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	h := &cpio.Header{Name: strings.TrimPrefix(path.Clean("/"+f.Path), "/"), Mode: cpio.TypeReg | 0o755, Size: info.Size(), Links: 1}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
