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
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/internal/progress"
	"patchbay/harness/tree"
)

func TestMain(m *testing.M) {
	keeper.Main()
	if os.Getenv("KBUILD_TEST_CACHE") != "" {
		buildToBeKilled()
	}
	os.Exit(m.Run())
}

// files are changes to the miniature kernel in testdata/linux; an empty content
// removes the file.
type files map[string]string

// fakeSources makes source folders of the miniature kernel. A commit's ID is
// the key of its changes.
type fakeSources struct {
	mu      sync.Mutex
	commits map[string]files
}

// commit records a state and returns its commit.
func (f *fakeSources) commit(changes files) tree.Commit {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		fmt.Fprintf(h, "%q %q\n", name, changes[name])
	}
	id := hex.EncodeToString(h.Sum(nil))
	if f.commits == nil {
		f.commits = map[string]files{}
	}
	f.commits[id] = changes
	return tree.Commit{ID: id, Tree: id, Version: "6.12.0", Describe: "miniature kernel"}
}

func (f *fakeSources) Checkout(_ context.Context, c tree.Commit, dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := map[string][]byte{}
	root := filepath.Join("testdata", "linux")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		want[rel], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return err
	}
	for name, content := range f.commits[c.ID] {
		if delete(want, name); content != "" {
			want[name] = []byte(content)
		}
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if rel, _ := filepath.Rel(dir, path); want[rel] == nil {
				return os.Remove(path)
			}
		}
		return nil
	})
	for name, content := range want {
		path := filepath.Join(dir, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fixture is a builder of miniature kernels with a cache of its own.
type fixture struct {
	*Builder
	t       *testing.T
	sources *fakeSources

	mu     sync.Mutex
	events []progress.Event
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, sources: &fakeSources{}}
	f.Builder = &Builder{
		CacheDir: filepath.Join(t.TempDir(), "cache"), Sources: f.sources, Jobs: 4,
		News: func(e progress.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
		},
	}
	return f
}

// again returns a builder of the same cache, as another process would have.
func (f *fixture) again() *fixture {
	g := &fixture{t: f.t, sources: f.sources}
	g.Builder = &Builder{CacheDir: f.CacheDir, BuildDir: f.BuildDir, Sources: f.sources, Jobs: 4, News: func(e progress.Event) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.events = append(g.events, e)
	}}
	return g
}

func (f *fixture) news() []progress.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

const fragment = `# SPDX-License-Identifier: MIT
CONFIG_NET=y
CONFIG_BPF=y
CONFIG_SOCK_MSG=y
CONFIG_HZ=100
CONFIG_CMDLINE="a # b" # strings may have a hash in them
`

// fragment writes a kconfig fragment and returns its path.
func (f *fixture) fragment(name, content string) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), name+".config")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// try builds a commit with these changes.
func (f *fixture) try(changes files, fragments ...string) (*Artifact, error) {
	f.t.Helper()
	if fragments == nil {
		fragments = []string{f.fragment("mini", fragment)}
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	return f.Kernel(ctx, Request{Commit: f.sources.commit(changes), Fragments: fragments})
}

// build is try that must work.
func (f *fixture) build(changes files, fragments ...string) *Artifact {
	f.t.Helper()
	a, err := f.try(changes, fragments...)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// fails is try that must not work, with this blame and these words.
func (f *fixture) fails(blame fault.Blame, words []string, changes files, fragments ...string) *fault.Error {
	f.t.Helper()
	_, err := f.try(changes, fragments...)
	return wantFault(f.t, err, blame, words...)
}

func wantFault(t *testing.T, err error, blame fault.Blame, words ...string) *fault.Error {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v: not a *fault.Error", err)
	}
	if e.Blame != blame {
		t.Errorf("blamed on the %v, want the %v: %v", e.Blame, blame, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error lacks %q:\n%v", w, err)
		}
	}
	if e.Next == "" {
		t.Errorf("the error does not say what to do: %v", err)
	}
	return e
}

// slot returns the only slot.
func (f *fixture) slot() string {
	f.t.Helper()
	root, err := f.slotRoot(f.CacheDir)
	if err != nil {
		f.t.Fatal(err)
	}
	all, _ := filepath.Glob(filepath.Join(escapeGlob(root), "*"))
	if len(all) != 1 {
		f.t.Fatalf("slots: %v, want one", all)
	}
	return all[0]
}

// read returns a file's content.
func (f *fixture) read(path string) string {
	f.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

// tool puts a program in front of PATH for the rest of the test.
func tool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// await waits for a condition that another process brings about.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
