// SPDX-License-Identifier: MIT

package kbuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/filelock"
)

// slot is a folder in which builds that are alike follow one another: same
// kernel version, architecture, fragments and tools. One builder at a time
// holds it.
type slot struct {
	name, dir string
	lock      *os.File
}

func (s *slot) src() string        { return filepath.Join(s.dir, "src") }
func (s *slot) out() string        { return filepath.Join(s.dir, "out") }
func (s *slot) libbpfOut() string  { return filepath.Join(s.dir, "libbpf") }
func (s *slot) libbpfRoot() string { return filepath.Join(s.dir, "libbpf-installed") }

// busy exists while make is at work, and after make was killed at it.
func (s *slot) busy() string { return filepath.Join(s.dir, "busy") }

var majorMinor = regexp.MustCompile(`^v?(\d+\.\d+)`)

func slotName(j job) string {
	version := "unknown"
	if m := majorMinor.FindStringSubmatch(j.commit.Version); m != nil {
		version = m[1]
	}
	// By the fragments' names and not by what they say: make copes well with a
	// symbol that changes, and a new slot would mean a full build.
	h := sha256.New()
	for _, v := range append(append([]string{}, j.fragments.names...), j.tools...) {
		fmt.Fprintf(h, "%d %s\n", len(v), v)
	}
	return version + "-" + j.arch.name + "-" + hex.EncodeToString(h.Sum(nil))[:8]
}

// openSlot takes the slot for the job, calling waiting once if another process
// holds it.
func openSlot(ctx context.Context, root string, j job, waiting func()) (*slot, error) {
	s := &slot{name: slotName(j)}
	s.dir = filepath.Join(root, s.name)
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, slotFailed(s.dir, err)
	}
	// make gets this very file as its standard input.
	path := filepath.Join(s.dir, "lock")
	f, err := filelock.Lock(ctx, path, waiting)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, slotFailed(path, err)
	}
	s.lock = f
	return s, nil
}

func (s *slot) close() { s.lock.Close() }

// slack is how long before the last sign of life of a killed build the writing
// of a file may have begun that is not finished. It covers only files that
// kbuild keeps no book of, which are all made within moments.
const slack = time.Minute

// recover removes what a killed make may have left half made. make would take
// such a file for finished if it is newer than its sources.
//
// For most files kbuild tells: it writes .NAME.cmd once NAME is complete, so a
// NAME that is newer is not. The few others are removed if they are young.
// Nothing that an interrupted build did complete is lost.
func (s *slot) recover() error {
	if _, err := os.Stat(s.busy()); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	type file struct {
		path string
		mod  time.Time
	}
	var files []file
	mods := map[string]time.Time{}
	var last time.Time
	for _, dir := range []string{s.out(), s.libbpfOut()} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			files = append(files, file{path, info.ModTime()})
			mods[path] = info.ModTime()
			if info.ModTime().After(last) {
				last = info.ModTime()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// kconfig writes these in an order that survives being killed, and which
	// symbols changed since the last build is recorded nowhere else.
	book := filepath.Join(s.out(), "include", "config") + "/"
	for _, f := range files {
		dir, name := filepath.Split(f.path)
		var whole bool
		cmd, kept := mods[filepath.Join(dir, "."+name+".cmd")]
		switch {
		case strings.HasPrefix(f.path, book), f.path == filepath.Join(s.out(), ".config"):
			whole = true
		case strings.HasSuffix(name, ".cmd"):
			ok, err := wholeCmd(f.path)
			if err != nil {
				return err
			}
			whole = ok
		case kept:
			whole = !f.mod.After(cmd)
		default:
			whole = f.mod.Before(last.Add(-slack))
		}
		if !whole {
			if err := os.Remove(f.path); err != nil {
				return err
			}
		}
	}
	return os.Remove(s.busy())
}

// wholeCmd says whether a .cmd file was written to its end.
func wholeCmd(path string) (bool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	return bytes.HasSuffix(data, []byte("\n")) &&
		(!bytes.Contains(data, []byte("\ndeps_")) || bytes.Contains(data, []byte("\n$(deps_"))), nil
}

// Slots returns the folder that holds the source and build folders, which are
// all that patchbay clean deletes. It makes the folder if need be.
func (b *Builder) Slots() (string, error) {
	cache, err := filepath.Abs(b.CacheDir)
	if err != nil {
		return "", cacheFailed(b.CacheDir, err)
	}
	return b.slotRoot(cache)
}

// tame are the characters in paths that the kernel's makefiles, and the shell
// commands in them, can cope with, besides all beyond ASCII.
const tame = "-+./@_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// slotRoot returns the folder for the slots, which exists then.
func (b *Builder) slotRoot(cache string) (string, error) {
	root := b.BuildDir
	if root == "" {
		root = filepath.Join(cache, "build")
	}
	real, err := makeRoot(root)
	if err != nil {
		return "", err
	}
	if isTame(real) {
		return real, nil
	}
	if b.BuildDir != "" {
		return "", &fault.Error{
			Blame: fault.Configuration, Doing: "choosing a build folder", Subject: real,
			Err:  errors.New("the kernel's makefiles cannot cope with a blank, a colon or the like in a path"),
			Next: "choose a folder whose path has only letters, digits and -+./@_",
		}
	}
	// Not os.TempDir: it is often in memory and emptied at boot, and a slot
	// takes gigabytes that are worth keeping.
	return b.privateRoot("/var/tmp", real)
}

func isTame(path string) bool {
	return strings.IndexFunc(path, func(r rune) bool { return r < utf8.RuneSelf && !strings.ContainsRune(tame, r) }) < 0
}

func makeRoot(root string) (string, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", cacheFailed(root, err)
	}
	// The kernel's makefiles resolve symbolic links, and then see the blanks.
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", cacheFailed(root, err)
	}
	if real, err = filepath.Abs(real); err != nil {
		return "", cacheFailed(root, err)
	}
	return real, nil
}

// privateRoot makes a folder for one user and one cache in a place where
// anyone can write, and makes sure that nobody else has got there first.
func (b *Builder) privateRoot(parent, cache string) (string, error) {
	sum := sha256.Sum256([]byte(cache))
	dir := filepath.Join(parent, fmt.Sprintf("patchbay-%d-%s", os.Getuid(), hex.EncodeToString(sum[:4])))
	instead := func(err error) error {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "choosing a build folder", Subject: dir, Err: err,
			Next: "the cache's path has a blank, a colon or the like, which the kernel's makefiles cannot cope with: set XDG_CACHE_HOME to a folder without",
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", instead(err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", instead(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return "", instead(errors.New("it is there already and not a folder of this user alone"))
	}
	return makeRoot(dir)
}
