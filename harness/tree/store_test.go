// SPDX-License-Identifier: MIT

package tree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/harness/internal/fault"
)

// A store is usable whatever came before: a half-made one is made again, and
// what it holds stays.
func TestOpen(t *testing.T) {
	s := open(t)
	c := resolve(t, s, Source{Tarball: file(t, "a.tar", tarOf(t, kernelEntries("linux/")...))})
	config := filepath.Join(s.dir, "config")
	for name, spoil := range map[string]func() error{
		"nothing":         func() error { return nil },
		"no config":       func() error { return os.Remove(config) },
		"cut config":      func() error { return os.Truncate(config, 40) },
		"another config":  func() error { return os.WriteFile(config, []byte("[core]\n\tbare = false\n"), 0o666) },
		"half-made store": func() error { return errors.Join(os.Remove(config), os.RemoveAll(filepath.Join(s.dir, "refs/tags"))) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			again, err := Open(context.Background(), s.cache, nil)
			if err != nil {
				t.Fatal(err)
			}
			if have, err := os.ReadFile(config); err != nil || string(have) != storeConfig {
				t.Errorf("the configuration is %q, %v", have, err)
			}
			if len(content(t, again, c)) != len(kernelFiles) {
				t.Error("what it held is gone")
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	inTheWay := file(t, "file", nil)
	_, err := Open(context.Background(), filepath.Join(inTheWay, "cache"), nil)
	faulty(t, err, fault.Harness, "opening the source store", inTheWay, "not a directory")

	if os.Geteuid() != 0 {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		_, err = Open(context.Background(), filepath.Join(dir, "cache"), nil)
		faulty(t, err, fault.Harness, "opening the source store", "permission denied")
	}

	stopped, stop := context.WithCancel(context.Background())
	stop()
	if _, err := Open(stopped, t.TempDir(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Git must be there and new enough.
func TestOldGit(t *testing.T) {
	for said, ok := range map[string]bool{
		"git version 2.31.9":           false,
		"git version 1.99":             false,
		"git version nonsense":         false,
		"git version 2.32.0":           true,
		"git version 2.50.1 (Apple x)": true,
		"git version 3.0":              true,
	} {
		bin := t.TempDir()
		script := "#!/bin/sh\necho '" + said + "'\n"
		if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin)
		err := checkGit(context.Background())
		if ok && err != nil {
			t.Errorf("%s: %v", said, err)
		}
		if !ok {
			faulty(t, err, fault.Harness, "looking for git", said, "2.32 or newer")
		}
	}
	t.Setenv("PATH", t.TempDir())
	faulty(t, checkGit(context.Background()), fault.Harness, "looking for git", "executable file not found", "bin/setup")
}

// Adopt brings into the store what a commit on top needs, and no more: the
// user's repository is then not needed for it.
func TestAdopt(t *testing.T) {
	s, dir := open(t), kernelRepo(t)
	c := resolve(t, s, Source{Dir: dir})
	if err := s.Adopt(context.Background(), c, c.ID+":Kconfig", "0123456789"); err != nil {
		t.Fatal(err)
	}
	have := func(what string) bool {
		_, err := s.Git(context.Background(), Git{}, "cat-file", "-e", what)
		return err == nil
	}
	for what, want := range map[string]bool{
		c.ID: true, c.Tree: true, c.ID + ":net/core": true, c.ID + ":Kconfig": true, c.ID + ":Makefile": false,
	} {
		if have(what) != want {
			t.Errorf("%s is there: %v", strings.TrimPrefix(what, c.ID), !want)
		}
	}
	gone := c
	gone.ID = strings.Repeat("1", 40)
	gone.Tree = strings.Repeat("2", 40)
	faulty(t, s.Adopt(context.Background(), gone), fault.Harness, "reading the folders of "+c.Describe)
}
