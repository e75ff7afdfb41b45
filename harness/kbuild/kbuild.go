// SPDX-License-Identifier: MIT

// Package kbuild turns a kernel source tree and kconfig fragments into
// something that boots: a kernel image with its configuration, and the libbpf
// of the same tree. It also builds the test binaries.
//
// A finished build is an artifact: a folder in the cache whose name is derived
// from all that went into it, so that what was built once is not built again.
// The work itself is done in slots, folders with a source tree and make's
// output, in which sources that are alike follow one another: going from one
// to the next compiles only what differs.
package kbuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
	"patchbay/harness/tree"
)

// Checkouter makes source folders. *tree.Store is one.
type Checkouter interface {
	// Checkout brings the folder to the commit, making it if need be. It
	// touches only files that differ, and gives those the present as their
	// modification time: make and this package both go by it.
	Checkout(ctx context.Context, c tree.Commit, dir string) error
}

// Builder builds kernels and tests. Its fields must not change once it is in
// use; several goroutines and processes may then build at the same time.
type Builder struct {
	// CacheDir is where artifacts and slots live. Any path will do.
	CacheDir string
	// BuildDir is where slots live instead, if CacheDir has a path that the
	// kernel's makefiles cannot cope with, or is short of space. Empty
	// chooses: below CacheDir if possible, else in a folder of this user and
	// this cache below /var/tmp.
	BuildDir string
	// Sources makes the source folders.
	Sources Checkouter
	// News hears of progress. It may be nil.
	News progress.Func
	// Jobs is how many commands make runs at once; 0 is one per CPU.
	Jobs int

	toolchain struct {
		sync.Mutex
		versions []string
	}
}

// Request says what is wanted.
type Request struct {
	// Commit is the source, series applied.
	Commit tree.Commit
	// Fragments are kconfig fragment files; later ones override earlier ones.
	Fragments []string
}

// Artifact is a finished build. All paths are absolute and inside Dir, which
// belongs to the cache and is only to be read.
type Artifact struct {
	// Key is a hash over all that went into it.
	Key string `json:"key"`
	// Dir is its folder.
	Dir string `json:"-"`
	// Image is what QEMU boots.
	Image string `json:"image"`
	// Config is the resolved kernel configuration.
	Config string `json:"config"`
	// SystemMap lists the addresses of the kernel's symbols.
	SystemMap string `json:"system_map"`
	// LibbpfStatic is libbpf.a. LibbpfShared is libbpf.so, a link to the
	// versioned file beside it. LibbpfHeaders is the folder for -I.
	LibbpfStatic  string `json:"libbpf_static"`
	LibbpfShared  string `json:"libbpf_shared"`
	LibbpfHeaders string `json:"libbpf_headers"`
	// Log is all that make said.
	Log string `json:"log"`
	// Commit is the source that it was first built from. The source that it
	// was asked for may be another commit with the same content.
	Commit tree.Commit `json:"commit"`
	// Release is what uname -r says in the guest.
	Release string `json:"release"`
	// Symbols counts kconfig symbols at y.
	Symbols int `json:"symbols"`
	// Toolchain lists the versions of the tools that built it.
	Toolchain []string `json:"toolchain"`
	// Objects counts the kernel's compiled objects in that build, the link's
	// own left out. Fewer than a whole kernel's means an incremental build.
	Objects int `json:"objects"`
	// Duration is how long that build took, waiting for others left out.
	Duration time.Duration `json:"duration_ns"`
	// Warnings are the compiler's, in the order of the log, at most
	// maxWarnings of them.
	Warnings []string `json:"warnings,omitempty"`
	// Notes say what is worth knowing about the configuration: fragments that
	// contradict one another, optional symbols that this tree does not know.
	Notes []string `json:"notes,omitempty"`
	// Cached says that nothing had to be built for this request.
	Cached bool `json:"-"`
}

// formatVersion is part of every key. It changes when the layout of an
// artifact does, or when this package makes other ones from the same input.
const formatVersion = "1"

const manifestName = "manifest.json"

// arch is what differs between processor architectures.
type arch struct {
	// name is the kernel's, the folder below arch/.
	name string
	// target is what make is asked for; image is where it lands in the output.
	target, image string
}

// arches is keyed by GOARCH: guests have the architecture of the host.
var arches = map[string]arch{
	"amd64": {name: "x86", target: "bzImage", image: "arch/x86/boot/bzImage"},
	"arm64": {name: "arm64", target: "Image", image: "arch/arm64/boot/Image"},
}

// Kernel returns the artifact for the request, building it if there is none.
//
// Errors are *fault.Error: blamed on the kernel if it or libbpf does not
// compile, on the configuration if a fragment asks for what cannot be had.
// An error of ctx is returned as it is. Interrupting it at any point is safe.
func (b *Builder) Kernel(ctx context.Context, req Request) (*Artifact, error) {
	target, ok := arches[runtime.GOARCH]
	if !ok {
		return nil, &fault.Error{
			Blame: fault.Configuration, Doing: "choosing the kernel image", Subject: runtime.GOARCH,
			Err: errors.New("kernels are not built on this architecture"),
		}
	}
	frags, err := readFragments(req.Fragments)
	if err != nil {
		return nil, err
	}
	cache, err := filepath.Abs(b.CacheDir)
	if err != nil {
		return nil, cacheFailed(b.CacheDir, err)
	}
	tools, err := b.toolVersions(ctx)
	if err != nil {
		return nil, err
	}
	store := artifacts{dir: filepath.Join(cache, "artifacts")}
	key := keyOf(req.Commit.Tree, frags, tools, target)
	if a := store.find(key); a != nil {
		b.News.Send(progress.Event{Step: "kernel", State: progress.Finished, Cached: true, Detail: a.Release})
		return a, nil
	}
	return b.build(ctx, cache, store, job{
		key: key, commit: req.Commit, fragments: frags, tools: tools, arch: target,
	})
}

// job is a request that has to be built.
type job struct {
	key       string
	commit    tree.Commit
	fragments *fragments
	tools     []string
	arch      arch
}

func (b *Builder) build(ctx context.Context, cache string, store artifacts, j job) (a *Artifact, err error) {
	if err := needTools(); err != nil {
		return nil, err
	}
	root, err := b.slotRoot(cache)
	if err != nil {
		return nil, err
	}
	s, err := openSlot(ctx, root, j, func() {
		b.News.Send(progress.Event{Step: "kernel", State: progress.Started, Detail: "waiting for another patchbay that builds here"})
	})
	if err != nil {
		return nil, err
	}
	defer s.close()
	// Whoever held the slot may have built the very same thing.
	if a := store.find(j.key); a != nil {
		b.News.Send(progress.Event{Step: "kernel", State: progress.Finished, Cached: true, Detail: a.Release})
		return a, nil
	}

	began := time.Now()
	if err := s.recover(); err != nil {
		return nil, slotFailed(s.dir, err)
	}
	if err := store.sweep(s.name, began); err != nil {
		return nil, cacheFailed(store.dir, err)
	}
	if err := b.Sources.Checkout(ctx, j.commit, s.src()); err != nil {
		return nil, err
	}
	if err := isKernelTree(s.src(), j.commit); err != nil {
		return nil, err
	}

	logs := filepath.Join(cache, "logs")
	if err := os.MkdirAll(logs, 0o777); err != nil {
		return nil, cacheFailed(logs, err)
	}
	m := &maker{
		ctx: ctx, slot: s, jobs: b.jobs(), news: b.News,
		log: filepath.Join(logs, j.key[:16]+".log"),
	}
	if err := m.open(); err != nil {
		return nil, cacheFailed(m.log, err)
	}
	defer m.close()

	notes, err := configure(m, j)
	if err != nil {
		return nil, err
	}
	if err := m.libbpf(); err != nil {
		return nil, err
	}
	objects, err := m.kernel(j.arch, cache)
	if err != nil {
		return nil, err
	}

	a = &Artifact{
		Key: j.key, Commit: j.commit, Toolchain: j.tools, Objects: objects,
		Warnings: m.warnings, Notes: append(j.fragments.notes, notes...),
		Duration: time.Since(began),
	}
	if err := store.add(a, s, j.arch, m.log); err != nil {
		return nil, err
	}
	return a, nil
}

func (b *Builder) jobs() int {
	if b.Jobs > 0 {
		return b.Jobs
	}
	return runtime.NumCPU()
}

func isKernelTree(dir string, c tree.Commit) error {
	for _, name := range []string{"Makefile", "Kconfig", "tools/lib/bpf/Makefile"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return &fault.Error{
				Blame: fault.Configuration, Doing: "building a kernel", Subject: c.Describe,
				Err:  fmt.Errorf("this is no kernel tree: it has no %s", name),
				Next: "name the top folder of a kernel's sources",
			}
		}
	}
	return nil
}

func cacheFailed(path string, err error) error {
	return &fault.Error{
		Blame: fault.Harness, Doing: "writing to the cache", Subject: path, Err: err,
		Next: "see to it that the cache folder is writable and the disk not full",
	}
}

func slotFailed(path string, err error) error {
	return &fault.Error{
		Blame: fault.Harness, Doing: "preparing the build folder", Subject: path, Err: err,
		Next: "see to it that it is writable and the disk not full; removing it costs a full build and nothing else",
	}
}

// artifacts is the folder of all artifacts, one folder each, named by key.
type artifacts struct{ dir string }

// find returns the complete artifact of that key, or nil.
func (s artifacts) find(key string) *Artifact {
	dir := filepath.Join(s.dir, key)
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil
	}
	a := &Artifact{}
	if json.Unmarshal(data, a) != nil || a.Key != key {
		return nil
	}
	a.Dir, a.Cached = dir, true
	for _, p := range a.paths() {
		*p = filepath.Join(dir, *p)
		if _, err := os.Stat(*p); err != nil {
			return nil
		}
	}
	return a
}

// paths are the files of an artifact: relative in the manifest, so that a
// cache can be moved, and absolute for those who use it.
func (a *Artifact) paths() []*string {
	return []*string{&a.Image, &a.Config, &a.SystemMap, &a.LibbpfStatic, &a.LibbpfShared, &a.LibbpfHeaders, &a.Log}
}

// staging is the beginning of the names of unfinished artifacts.
const staging = ".new-"

// sweep removes what earlier builds left unfinished: those of the slot, which
// the caller holds, and any that nobody can be at work on any more.
func (s artifacts) sweep(slot string, now time.Time) error {
	left, err := filepath.Glob(filepath.Join(escapeGlob(s.dir), staging+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		info, err := os.Stat(dir)
		if err != nil {
			continue
		}
		if strings.HasPrefix(filepath.Base(dir), staging+slot+"-") || now.Sub(info.ModTime()) > 24*time.Hour {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// add makes the artifact out of what stands in the slot. It becomes visible
// complete or not at all.
func (s artifacts) add(a *Artifact, from *slot, target arch, log string) error {
	if err := os.MkdirAll(s.dir, 0o777); err != nil {
		return cacheFailed(s.dir, err)
	}
	dir, err := os.MkdirTemp(s.dir, staging+from.name+"-")
	if err != nil {
		return cacheFailed(s.dir, err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return cacheFailed(dir, err)
	}

	config, err := os.ReadFile(filepath.Join(from.out(), ".config"))
	if err != nil {
		return slotFailed(from.out(), err)
	}
	a.Symbols = countSet(config)
	release, err := os.ReadFile(filepath.Join(from.out(), "include/config/kernel.release"))
	if err != nil {
		return slotFailed(from.out(), err)
	}
	a.Release = strings.TrimSpace(string(release))

	a.Image, a.Config, a.SystemMap, a.Log = filepath.Base(target.image), "config", "System.map", "build.log"
	a.LibbpfStatic, a.LibbpfShared, a.LibbpfHeaders = "libbpf/lib/libbpf.a", "libbpf/lib/libbpf.so", "libbpf/include"
	for _, c := range []struct{ from, to string }{
		{filepath.Join(from.out(), target.image), a.Image},
		{filepath.Join(from.out(), ".config"), a.Config},
		{filepath.Join(from.out(), "System.map"), a.SystemMap},
		{filepath.Join(from.libbpfRoot(), "usr/lib"), "libbpf/lib"},
		{filepath.Join(from.libbpfRoot(), "usr/include"), "libbpf/include"},
		{log, a.Log},
	} {
		if err := copyTree(c.from, filepath.Join(dir, c.to)); err != nil {
			return cacheFailed(filepath.Join(dir, c.to), err)
		}
	}
	for _, p := range a.paths() {
		if _, err := os.Stat(filepath.Join(dir, *p)); err != nil {
			return &fault.Error{
				Blame: fault.Harness, Doing: "collecting the build", Subject: *p, Err: err,
				Next: "make ended well without making it; its log is " + log,
			}
		}
	}
	manifest, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return cacheFailed(dir, err)
	}
	if err := writeSynced(filepath.Join(dir, manifestName), append(manifest, '\n')); err != nil {
		return cacheFailed(dir, err)
	}
	if err := syncTree(dir); err != nil {
		return cacheFailed(dir, err)
	}

	final := filepath.Join(s.dir, a.Key)
	// What stands there did not pass find: a file of it was lost.
	if err := os.RemoveAll(final); err != nil {
		return cacheFailed(final, err)
	}
	if err := os.Rename(dir, final); err != nil {
		return cacheFailed(final, err)
	}
	if err := syncPath(s.dir); err != nil {
		return cacheFailed(s.dir, err)
	}
	os.Remove(log)
	a.Dir = final
	for _, p := range a.paths() {
		*p = filepath.Join(final, *p)
	}
	return nil
}
