// SPDX-License-Identifier: MIT

package kbuild

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
	"patchbay/harness/tree"
)

const (
	skmsgFile = "net/core/skmsg.c"
	skmsgOne  = "int skmsg(void);\n\nint skmsg(void)\n{\n\treturn 1;\n}\n"
	skmsgBad  = "int skmsg(void);\n\nint skmsg(void)\n{\n\treturn nonesuch;\n}\n"
)

func TestArtifact(t *testing.T) {
	f := newFixture(t)
	a := f.build(nil)
	if a.Cached {
		t.Error("the first build claims to be cached")
	}
	if a.Objects != 4 {
		t.Errorf("compiled %d objects, want 4", a.Objects)
	}
	if a.Release != "6.12.0" || a.Symbols != 4 || a.Duration <= 0 || len(a.Toolchain) != len(versioned) {
		t.Errorf("release %q, %d symbols, %v, %q", a.Release, a.Symbols, a.Duration, a.Toolchain)
	}
	for _, p := range []string{a.Image, a.SystemMap, a.Log, a.LibbpfStatic, a.LibbpfShared, filepath.Join(a.LibbpfHeaders, "bpf/bpf.h")} {
		if !strings.HasPrefix(p, filepath.Join(f.CacheDir, "artifacts", a.Key)+"/") {
			t.Errorf("%s is not in the artifact", p)
		}
		if f.read(p) == "" {
			t.Errorf("%s is empty", p)
		}
	}
	if !strings.Contains(f.read(a.Config), "CONFIG_CMDLINE=\"a # b\"\n") {
		t.Errorf("the configuration is\n%s", f.read(a.Config))
	}

	// Everything in it is found again, wherever the cache has gone to.
	moved := f.again()
	moved.CacheDir += " moved"
	if err := os.Rename(f.CacheDir, moved.CacheDir); err != nil {
		t.Fatal(err)
	}
	b := moved.build(nil)
	if !b.Cached || b.Key != a.Key || b.Objects != a.Objects || b.Duration != a.Duration {
		t.Errorf("found %+v, made %+v", b, a)
	}
	if f.read(b.Image) == "" || !strings.HasPrefix(b.Image, moved.CacheDir) {
		t.Errorf("the image is %s", b.Image)
	}
}

func TestHitRunsNoMake(t *testing.T) {
	f := newFixture(t)
	one := f.build(nil)
	two := f.build(files{skmsgFile: skmsgOne})
	if one.Key == two.Key {
		t.Fatal("two sources, one key")
	}
	calls := filepath.Join(t.TempDir(), "calls")
	tool(t, "make", `[ "$1" = --version ] && exec /usr/bin/make --version; echo "$@" >> '`+calls+`'; exit 1`)
	for _, changes := range []files{nil, {skmsgFile: skmsgOne}, nil} {
		if a := f.again().build(changes); !a.Cached {
			t.Error("built again")
		}
	}
	if exists(calls) {
		t.Errorf("make was called: %s", f.read(calls))
	}
	// The trap works: what is not there does call it.
	if _, err := f.try(files{skmsgFile: skmsgBad}); err == nil || !exists(calls) {
		t.Errorf("the make on PATH was not called: %v", err)
	}
}

func TestIncremental(t *testing.T) {
	f := newFixture(t)
	f.build(nil)
	object := filepath.Join(f.slot(), "out/kernel/fork.o")
	before, err := os.Stat(object)
	if err != nil {
		t.Fatal(err)
	}
	if a := f.build(files{skmsgFile: skmsgOne}); a.Objects != 1 || a.Cached {
		t.Errorf("compiled %d objects, want the one that differs", a.Objects)
	}
	if after, err := os.Stat(object); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("an object was touched whose source was not: %v", err)
	}
	// A fragment that says something else, but has the same name, builds in
	// the same slot.
	f.build(nil, f.fragment("mini", "CONFIG_NET=y\n"))
	f.slot()
}

func TestKeyDependsOn(t *testing.T) {
	base := func() (string, *fragments, []string, arch) {
		return "tree", &fragments{contents: []string{"CONFIG_A=y\n", "CONFIG_B=y\n"}}, []string{"gcc: 1", "ld: 2"}, arches["amd64"]
	}
	seen := map[string]string{keyOf(base()): "nothing"}
	for what, change := range map[string]func(treeHash *string, f *fragments, tools []string, a *arch){
		"the source":       func(h *string, _ *fragments, _ []string, _ *arch) { *h = "other" },
		"a fragment":       func(_ *string, f *fragments, _ []string, _ *arch) { f.contents[1] = "CONFIG_B=n\n" },
		"their order":      func(_ *string, f *fragments, _ []string, _ *arch) { slices.Reverse(f.contents) },
		"their boundaries": func(_ *string, f *fragments, _ []string, _ *arch) { f.contents = []string{"CONFIG_A=y\nCONFIG_B=y\n"} },
		"a tool":           func(_ *string, _ *fragments, tools []string, _ *arch) { tools[0] = "gcc: 3" },
		"the target":       func(_ *string, _ *fragments, _ []string, a *arch) { *a = arches["arm64"] },
	} {
		h, f, tools, a := base()
		change(&h, f, tools, &a)
		key := keyOf(h, f, tools, a)
		if other, ok := seen[key]; ok {
			t.Errorf("changing %s gives the same key as changing %s", what, other)
		}
		seen[key] = what
	}
	if h, f, tools, a := base(); seen[keyOf(h, f, tools, a)] != "nothing" {
		t.Error("the same input gives another key")
	}
}

func TestEnvironmentDoesNotLeakIn(t *testing.T) {
	for _, kv := range []string{
		"ARCH=um", "CROSS_COMPILE=no-such-", "KCFLAGS=-Dx", "MAKEFLAGS=n", "KBUILD_OUTPUT=/nonexistent", "KCONFIG_ALLCONFIG=/nonexistent", "O=/nonexistent",
	} {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	t.Setenv("CCACHE_DIR", "/a b")
	f := newFixture(t)
	f.build(files{"fake.mk": `BEFORE_LINK = env > $(out)/seen` + "\n"})
	seen := f.read(filepath.Join(f.slot(), "out/seen"))
	for _, want := range []string{"LC_ALL=C", "CCACHE_DIR=/a b", "KBUILD_BUILD_USER=patchbay", "LOCALVERSION="} {
		if !slices.Contains(strings.Split(seen, "\n"), want) {
			t.Errorf("make did not see %s", want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	tests := map[string]struct {
		changes files
		blame   fault.Blame
		subject string
		words   []string
		not     string
	}{
		"compiler": {
			changes: files{skmsgFile: skmsgBad}, blame: fault.Kernel, subject: "net/core/skmsg.c:5",
			words: []string{"building the kernel", "In function 'skmsg'", "'nonesuch' undeclared", "return nonesuch;", "^~~", "the whole log is "},
			not:   "make[",
		},
		"header": {
			changes: files{"include/fake.h": "int broken\n"}, blame: fault.Kernel,
			words: []string{"In file included from", "include/fake.h"},
		},
		"linker": {
			changes: files{skmsgFile: "int other;\n"}, blame: fault.Kernel,
			words: []string{"undefined reference to `skmsg'"},
		},
		"no rule": {
			changes: files{skmsgFile: ""}, blame: fault.Kernel,
			words: []string{"No rule to make target", skmsgFile},
		},
		"makefile": {
			changes: files{"fake.mk": "$(if $(filter bzImage Image,$(MAKECMDGOALS)),$(error no such thing))\n"}, blame: fault.Kernel,
			subject: "fake.mk:1", words: []string{"no such thing"},
		},
		"BTF": {
			changes: files{"fake.mk": "BEFORE_LINK = echo 'FAILED: load BTF from vmlinux: Invalid argument' >&2; exit 255\n"}, blame: fault.Kernel,
			words: []string{"FAILED: load BTF from vmlinux"},
		},
		"not UTF-8": {
			changes: files{"fake.mk": "BEFORE_CC = printf 'junk \\303(\\377\\n' >&2\n", skmsgFile: skmsgBad}, blame: fault.Kernel,
			subject: "net/core/skmsg.c:5", words: []string{"'nonesuch' undeclared"},
		},
		"nothing said": {
			changes: files{"fake.mk": "BEFORE_LINK = echo some last words; exit 7\n"}, blame: fault.Kernel,
			words: []string{"some last words", "Error 7"},
		},
		"disk full": {
			changes: files{"fake.mk": "AFTER_CC = echo \"/tmp/cc1.s: Fatal error: can't write 12 bytes: No space left on device\" >&2; exit 1\n"},
			blame:   fault.Harness, words: []string{"disk is full", "No space left"},
		},
		"out of memory": {
			changes: files{"fake.mk": "AFTER_CC = echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1\n"},
			blame:   fault.Harness, words: []string{"memory ran out", "fewer jobs"},
		},
		"killed": {
			changes: files{"fake.mk": "AFTER_CC = kill -9 $$$$$$$$\n"},
			blame:   fault.Harness, words: []string{"memory ran out"},
		},
		"missing tool": {
			changes: files{"fake.mk": "BEFORE_CONFIG = echo '/bin/sh: 1: flex: not found' >&2; exit 127\n"},
			blame:   fault.Harness, words: []string{"a tool", "flex", "bin/setup"},
		},
		"missing header": {
			changes: files{"fake.mk": "BEFORE_CC = echo 'elf.h:9:10: fatal error: gelf.h: No such file or directory' >&2; exit 1\n"},
			blame:   fault.Harness, words: []string{"gelf.h", "bin/setup"},
		},
		"words in the source": {
			changes: files{skmsgFile: "char *s = nonesuch \"No space left on device\";\n"}, blame: fault.Kernel, subject: "net/core/skmsg.c:1",
		},
		"libbpf": {
			changes: files{"tools/lib/bpf/bpf.c": "int broken\n"}, blame: fault.Kernel,
			words: []string{"building libbpf", "bpf.c:1"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.fails(test.blame, test.words, test.changes)
			if test.subject != "" && e.Subject != test.subject {
				t.Errorf("the subject is %q, want %q", e.Subject, test.subject)
			}
			if test.not != "" && strings.Contains(e.Said, test.not) {
				t.Errorf("%q should not be in\n%s", test.not, e.Said)
			}
			if n := strings.Count(e.Said, "\n"); n > maxComplaints*maxComplaintLines {
				t.Errorf("%d lines are too many", n)
			}
			if left, _ := filepath.Glob(filepath.Join(f.CacheDir, "artifacts", "*")); left != nil {
				t.Errorf("a failed build left %v", left)
			}
			if e.Blame == fault.Kernel {
				_, log, _ := strings.Cut(e.Next, "the whole log is ")
				if !strings.Contains(f.read(log), "make") {
					t.Errorf("the log is %q", f.read(log))
				}
			}
			// With the sources mended, the same slot builds.
			if a := f.build(nil); a.Cached {
				t.Error("nothing was built")
			}
		})
	}
}

func TestManyErrorsInParallel(t *testing.T) {
	f := newFixture(t)
	bad := func(n string) string { return "int f" + n + "(void) { return missing_" + n + "; }\n" }
	e := f.fails(fault.Kernel, []string{"error: "}, files{
		"init/main.c": bad("a"), "kernel/fork.c": bad("b"), "kernel/panic.c": bad("c"), skmsgFile: bad("d"),
	})
	// However many ran at once: a source line stands below its own error.
	last := ""
	for line := range strings.Lines(e.Said) {
		if _, after, ok := strings.Cut(line, "error: 'missing_"); ok {
			last = after[:1]
		}
		if _, after, ok := strings.Cut(line, "return missing_"); ok && after[:1] != last {
			t.Errorf("the source of %s below the error of %s:\n%s", after[:1], last, e.Said)
		}
	}
}

func TestWarningsAreKept(t *testing.T) {
	f := newFixture(t)
	a := f.build(files{skmsgFile: "int skmsg(void)\n{\n\tint unused;\n\treturn 0;\n}\n"})
	if len(a.Warnings) != 1 || !strings.HasPrefix(a.Warnings[0], "net/core/skmsg.c:3:13: warning: unused variable") {
		t.Errorf("warnings: %q", a.Warnings)
	}
}

func TestMissingTools(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	for _, name := range []string{"make", "gcc", "ld", "perl", "python3", "nice", "bc"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	f.fails(fault.Harness, []string{"flex, bison", "bin/setup"}, nil)
}

func TestNoKernelTree(t *testing.T) {
	newFixture(t).fails(fault.Configuration, []string{"no kernel tree", "Makefile"}, files{"Makefile": ""})
}

func TestPathsThatMakeCannotCopeWith(t *testing.T) {
	f := newFixture(t)
	f.CacheDir = filepath.Join(t.TempDir(), "a b: ünï#")
	root, err := f.slotRoot(f.CacheDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if !isTame(root) || strings.HasPrefix(root, f.CacheDir) {
		t.Fatalf("slots are in %s", root)
	}
	a := f.build(nil, f.fragment("strange ñame", fragment))
	if !strings.HasPrefix(a.Image, f.CacheDir) {
		t.Errorf("the image is %s", a.Image)
	}
	if b := f.again().build(files{skmsgFile: skmsgOne}, f.fragment("strange ñame", fragment)); b.Objects != 1 {
		t.Errorf("compiled %d objects: not in the same slot", b.Objects)
	}

	// Letters beyond ASCII alone are no trouble.
	g := newFixture(t)
	g.CacheDir = filepath.Join(t.TempDir(), "ünï")
	g.build(nil)
	if !strings.HasPrefix(g.slot(), g.CacheDir) {
		t.Errorf("the slot is %s", g.slot())
	}
}

func TestBuildDir(t *testing.T) {
	f := newFixture(t)
	f.BuildDir = filepath.Join(t.TempDir(), "elsewhere")
	f.build(nil)
	if !strings.HasPrefix(f.slot(), f.BuildDir+"/") {
		t.Errorf("the slot is %s", f.slot())
	}
	// A link does not help: make looks through it.
	blank := filepath.Join(t.TempDir(), "a b")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Mkdir(blank, 0o755), os.Symlink(blank, link)); err != nil {
		t.Fatal(err)
	}
	g := newFixture(t)
	g.BuildDir = link
	g.fails(fault.Configuration, []string{"a b", "cannot cope"}, nil)
}

func TestPrivateRootOfSomebodyElse(t *testing.T) {
	parent, b := t.TempDir(), &Builder{}
	dir, err := b.privateRoot(parent, "cache")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.privateRoot(parent, "cache"); err != nil || again != dir {
		t.Errorf("the second time: %s, %v", again, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err = b.privateRoot(parent, "cache")
	wantFault(t, err, fault.Configuration, "XDG_CACHE_HOME")
	if err := errors.Join(os.Remove(dir), os.Symlink(t.TempDir(), dir)); err != nil {
		t.Fatal(err)
	}
	_, err = b.privateRoot(parent, "cache")
	wantFault(t, err, fault.Configuration, "XDG_CACHE_HOME")
}

func TestUnusableCache(t *testing.T) {
	f := newFixture(t)
	// Not a read-only folder: root may write there.
	if err := os.WriteFile(f.CacheDir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f.fails(fault.Harness, []string{"writing to the cache", f.CacheDir}, nil)
}

// The stages of a build at which it is interrupted: with nothing there, and
// with a finished build to start from, when make has reasons to take what is
// half made for whole.
var interruptions = map[string]string{
	"object":  "AFTER_CC = printf junk > $$@; touch $(out)/reached; sleep 1000\n",
	"link":    "AFTER_LINK = printf junk > $@; touch $(out)/reached; sleep 1000\n",
	"kconfig": "BEFORE_CONFIG = printf junk > $(KCONFIG_CONFIG); touch $(out)/reached; sleep 1000\n",
}

func interrupted(where string) files {
	return files{"fake.mk": interruptions[where], skmsgFile: skmsgOne, "Kconfig": "config NET\n\tbool \"Net\"\nconfig SOCK_MSG\n\tbool \"x\"\n"}
}

// mended is the same state without the trap.
func mended(where string) files {
	c := interrupted(where)
	c["fake.mk"] = "# harmless now\n"
	return c
}

func checkAfterInterruption(t *testing.T, f *fixture, where string) {
	t.Helper()
	a := f.again().build(mended(where))
	clean := newFixture(t).build(mended(where))
	if f.read(a.Image) != f.read(clean.Image) {
		t.Error("the image differs from that of a clean build")
	}
	if f.read(a.Config) != f.read(clean.Config) {
		t.Error("the configuration differs from that of a clean build")
	}
	if left, _ := filepath.Glob(filepath.Join(f.CacheDir, "artifacts", ".new-*")); left != nil {
		t.Errorf("left over: %v", left)
	}
}

func TestCancel(t *testing.T) {
	for where := range interruptions {
		for _, start := range []string{"cold", "warm"} {
			t.Run(where+" "+start, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				root := filepath.Join(f.CacheDir, "build")
				if start == "warm" {
					f.build(nil)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				fragments := []string{f.fragment("mini", fragment)}
				go func() {
					_, err := f.Kernel(ctx, Request{Commit: f.sources.commit(interrupted(where)), Fragments: fragments})
					ended <- err
				}()
				await(t, "make is where it waits", func() bool {
					found, _ := filepath.Glob(filepath.Join(root, "*/out/reached"))
					return found != nil
				})
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Fatalf("ended with %v", err)
				}
				checkAfterInterruption(t, f, where)
			})
		}
	}
}

// buildToBeKilled is another process, in the middle of a build.
func buildToBeKilled() {
	sources := &fakeSources{}
	b := &Builder{CacheDir: os.Getenv("KBUILD_TEST_CACHE"), Sources: sources, Jobs: 4}
	_, err := b.Kernel(context.Background(), Request{
		Commit:    sources.commit(interrupted("object")),
		Fragments: []string{os.Getenv("KBUILD_TEST_FRAGMENT")},
	})
	panic(err)
}

func TestKilled(t *testing.T) {
	f := newFixture(t)
	f.build(nil)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "KBUILD_TEST_CACHE="+f.CacheDir, "KBUILD_TEST_FRAGMENT="+f.fragment("mini", fragment))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "make is where it waits", func() bool { return exists(filepath.Join(f.slot(), "out/reached")) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	checkAfterInterruption(t, f, "object")
}

// What an interrupted build has finished is not built again.
func TestInterruptedBuildGoesOn(t *testing.T) {
	f := newFixture(t)
	f.build(nil)
	out := filepath.Join(f.slot(), "out")
	if err := errors.Join(os.WriteFile(filepath.Join(f.slot(), "busy"), nil, 0o644), os.Remove(filepath.Join(out, "kernel/panic.o"))); err != nil {
		t.Fatal(err)
	}
	if a := f.build(files{skmsgFile: skmsgOne}); a.Objects != 2 {
		t.Errorf("compiled %d objects, want the one that is missing and the one that differs", a.Objects)
	}
}

func TestRecover(t *testing.T) {
	s := &slot{dir: t.TempDir()}
	now := time.Now()
	const cmd = "savedcmd_x := gcc\n\ndeps_x := \\\n\nx: $(deps_x)\n\n$(deps_x):\n"
	for _, file := range []struct {
		name, content string
		age           time.Duration
		whole         bool
	}{
		{"out/a.o", "", 4 * time.Second, true},
		{"out/.a.o.cmd", cmd, 4 * time.Second, true},
		{"out/b.o", "", 3 * time.Second, false},
		{"out/.b.o.cmd", cmd, 4 * time.Second, true},
		{"out/.c.o.cmd", cmd[:30], 4 * time.Second, false},
		{"out/.d.o.cmd", "savedcmd_d := ld\n", 4 * time.Second, true},
		{"out/.e.o.cmd", "savedcmd_e := l", 4 * time.Second, false},
		{"out/.f.o.cmd", "", 4 * time.Second, false},
		{"out/young.h", "", 4 * time.Second, false},
		{"out/old.h", "", 2 * slack, true},
		{"out/include/config/NET", "", 4 * time.Second, true},
		{"out/.config", "", 4 * time.Second, true},
		{"libbpf/libbpf.a", "", 4 * time.Second, false},
		{"libbpf/last.o", "", 0, false},
		{"src/kernel/fork.c", "", 0, true},
	} {
		path := filepath.Join(s.dir, file.name)
		if err := errors.Join(
			os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(file.content), 0o644),
			os.Chtimes(path, now.Add(-file.age), now.Add(-file.age)),
		); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if exists(path) != file.whole {
				t.Errorf("%s: there %v, want %v", file.name, exists(path), file.whole)
			}
		}()
	}
	// Without the mark of an interrupted build, nothing is looked at.
	if err := s.recover(); err != nil || !exists(filepath.Join(s.dir, "out/b.o")) {
		t.Fatalf("removed without need: %v", err)
	}
	if err := os.WriteFile(s.busy(), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.recover(); err != nil {
		t.Fatal(err)
	}
	if exists(s.busy()) {
		t.Error("the mark is still there")
	}
}

func TestHalfArtifacts(t *testing.T) {
	f := newFixture(t)
	a := f.build(nil)
	for what, damage := range map[string]func() error{
		"an image is missing":    func() error { return os.Remove(a.Image) },
		"the manifest is broken": func() error { return os.WriteFile(filepath.Join(a.Dir, manifestName), []byte("{"), 0o644) },
		"the manifest is another's": func() error {
			data, err := json.Marshal(Artifact{Key: "other"})
			return errors.Join(err, os.WriteFile(filepath.Join(a.Dir, manifestName), data, 0o644))
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		leftOver := filepath.Join(f.CacheDir, "artifacts", ".new-"+filepath.Base(f.slot())+"-123")
		if err := os.MkdirAll(filepath.Join(leftOver, "libbpf"), 0o755); err != nil {
			t.Fatal(err)
		}
		b := f.build(nil)
		if b.Cached || !exists(b.Image) {
			t.Errorf("%s: used as it was", what)
		}
		if exists(leftOver) {
			t.Errorf("%s is still there", leftOver)
		}
	}
}

func TestTwoAtOnce(t *testing.T) {
	f := newFixture(t)
	g := f.again()
	trap := files{"fake.mk": "BEFORE_LINK = touch $(out)/reached; until test -e $(out)/go; do sleep 0.01; done\n"}
	fragments := []string{f.fragment("mini", fragment)}
	type result struct {
		a   *Artifact
		err error
	}
	results := make(chan result, 2)
	start := func(b *fixture) {
		a, err := b.Kernel(t.Context(), Request{Commit: f.sources.commit(trap), Fragments: fragments})
		results <- result{a, err}
	}
	go start(f)
	out := ""
	await(t, "the first one links", func() bool {
		found, _ := filepath.Glob(filepath.Join(f.CacheDir, "build/*/out/reached"))
		if found != nil {
			out = filepath.Dir(found[0])
		}
		return found != nil
	})
	go start(g)
	await(t, "the second one says that it waits", func() bool {
		return slices.ContainsFunc(g.news(), func(e progress.Event) bool {
			return strings.Contains(e.Detail, "waiting for another patchbay")
		})
	})
	// Waiting can be given up.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.again().Kernel(ctx, Request{Commit: f.sources.commit(trap), Fragments: fragments}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("giving up ended with %v", err)
	}
	if err := os.WriteFile(filepath.Join(out, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cached := 0
	for range 2 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		if r.a.Cached {
			cached++
		}
	}
	if cached != 1 {
		t.Errorf("%d of two builds of the same thing were cached, want one", cached)
	}
}

func TestProgress(t *testing.T) {
	f := newFixture(t)
	f.build(nil)
	check := func(f *fixture, total int) {
		t.Helper()
		var last, ended progress.Event
		for _, e := range f.news() {
			if e.Step != "kernel" {
				continue
			}
			switch e.State {
			case progress.Running:
				if e.Done < last.Done || e.Detail == "" || e.Total > 0 && e.Done > e.Total {
					t.Errorf("after %+v came %+v", last, e)
				}
				last = e
			case progress.Finished:
				ended = e
			}
		}
		if last.Done != 4 || ended.Step == "" || total >= 0 && last.Total != total {
			t.Errorf("the last news were %+v and %+v, want a total of %d", last, ended, total)
		}
	}
	check(f, -1)
	// The second full build of such a kernel knows what to expect.
	g := f.again()
	g.build(nil, f.fragment("other", strings.Replace(fragment, "HZ=100", "HZ=250", 1)))
	check(g, 4)
	// A hit says so.
	h := f.again()
	h.build(nil)
	if all := h.news(); len(all) != 1 || !all[0].Cached || all[0].State != progress.Finished {
		t.Errorf("the news of a hit: %+v", all)
	}
}

func TestSlotNames(t *testing.T) {
	base := job{arch: arches["amd64"], fragments: &fragments{names: []string{"lean.config"}}, tools: []string{"gcc: 1"}}
	name := func(version string, change func(*job)) string {
		j := base
		j.commit = tree.Commit{Version: version}
		if change != nil {
			change(&j)
		}
		return slotName(j)
	}
	want := name("6.12.117", nil)
	if !strings.HasPrefix(want, "6.12-x86-") {
		t.Errorf("slot %s", want)
	}
	if got := name("6.12.0-rc1", nil); got != want {
		t.Errorf("6.12.0-rc1 is in %s, 6.12.117 in %s", got, want)
	}
	for what, other := range map[string]string{
		"version":   name("7.3.0", nil),
		"none":      name("", nil),
		"fragments": name("6.12.1", func(j *job) { j.fragments = &fragments{names: []string{"lean.config", "kasan.config"}} }),
		"tools":     name("6.12.1", func(j *job) { j.tools = []string{"gcc: 2"} }),
	} {
		if other == want {
			t.Errorf("another %s has the same slot", what)
		}
	}
}
