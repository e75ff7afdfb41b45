// SPDX-License-Identifier: MIT

package kbuild

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

// listing is a test that hands its sub-tests to a helper as those of patchbay
// do: with PATCHBAY_LIST=1 it prints them and runs nothing.
const listing = `package x

import (
	"fmt"
	"os"
	"testing"
)

func list(t *testing.T, names ...string) {
	if os.Getenv("PATCHBAY_LIST") != "1" {
		t.Fatal("a test ran on the host")
	}
	for _, n := range names {
		fmt.Println("patchbay-list: " + t.Name() + "/" + n)
	}
}
`

// module writes a Go module with suites and returns its folder.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a module")
	files["go.mod"] = "module x\n\ngo 1.23\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// goodModule has a suite with the helper and one without, and folders that are
// no suites.
func goodModule(t *testing.T) string {
	return module(t, map[string]string{
		"tests/marked/x_test.go": listing + `
func TestMaps(t *testing.T)  { list(t, "create", "update_elem") }
func TestProgs(t *testing.T) { list(t, "attach") }
`,
		"tests/plain/x_test.go": `package x

import "testing"

func TestOne(t *testing.T)          { t.Fatal("a test ran on the host") }
func TestÄ(t *testing.T)            {}
func BenchmarkNone(b *testing.B)    {}
func FuzzNone(f *testing.F)         {}
func Example() {}
`,
		"tests/internal/subtest/x_test.go": "package x\n",
		"tests/testdata/x_test.go":         "package x\n",
		"tests/_off/x_test.go":             "package x\n",
		"tests/notests/x.go":               "package x\n",
	})
}

func TestSuites(t *testing.T) {
	f, root := newFixture(t), goodModule(t)
	dir := filepath.Join(t.TempDir(), "a run")
	suites, err := f.Suites(t.Context(), root, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Suite{
		{Name: "marked", Binary: dir + "/marked.test", Tests: []string{"TestMaps/create", "TestMaps/update_elem", "TestProgs/attach"}, SelfMarking: true},
		{Name: "plain", Binary: dir + "/plain.test", Tests: []string{"TestOne", "TestÄ"}},
	}
	if diff := cmp.Diff(want, suites); diff != "" {
		t.Fatal(diff)
	}
	for _, s := range suites {
		file, err := elf.Open(s.Binary)
		if err != nil {
			t.Fatal(err)
		}
		if libs, err := file.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s needs %q, %v", s.Name, libs, err)
		}
		file.Close()
	}

	// A finished binary is taken as it is, under its own name.
	own := filepath.Join(t.TempDir(), "own.test")
	if err := os.Link(suites[1].Binary, own); err != nil {
		if data, err := os.ReadFile(suites[1].Binary); err != nil || os.WriteFile(own, data, 0o755) != nil {
			t.Fatal(err)
		}
	}
	got, err := f.Suites(t.Context(), root, filepath.Join(t.TempDir(), "run"), []string{own})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Suite{{Name: "own", Binary: own, Tests: want[1].Tests}}, got); diff != "" {
		t.Error(diff)
	}

	for wanted, say := range map[string]string{
		"markd":               "marked",
		"marked,plain,marked": "two suites have this name",
		"plain," + strings.TrimSuffix(own, "own.test") + "plain.test": "two suites have this name",
		"./missing.test": "no such file",
		"/etc/passwd":    "no executable file",
		"/bin/sh":        "it needs shared libraries",
		root + "/tests/": "no executable file",
	} {
		_, err := f.Suites(t.Context(), root, filepath.Join(t.TempDir(), "run"), strings.Split(wanted, ","))
		wantFault(t, err, fault.Configuration, say)
	}
	script := filepath.Join(t.TempDir(), "script.test")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = f.Suites(t.Context(), root, t.TempDir(), []string{script})
	wantFault(t, err, fault.Configuration, script, "go test -c makes one")

	_, err = f.Suites(t.Context(), t.TempDir(), t.TempDir(), nil)
	wantFault(t, err, fault.Configuration, "there is none")
}

// What is wrong with a suite is the test's fault, and its own words are shown.
func TestSuitesThatAreWrong(t *testing.T) {
	f := newFixture(t)
	root := module(t, map[string]string{
		"tests/broken/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { return 1 }\n",
		"tests/empty/x_test.go":  "package x\n",
		"tests/dies/x_test.go":   "package x\n\nfunc init() { panic(\"early\") }\n",
		"tests/silent/x_test.go": listing + "func TestX(t *testing.T) { list(t) }\n",
		"tests/partly/x_test.go": listing + "func TestX(t *testing.T) { list(t, \"a\") }\nfunc TestY(t *testing.T) {}\n",
	})
	for suite, words := range map[string][]string{
		"broken": {"they do not compile", "x_test.go:5", "too many return values", "go vet ./tests/broken"},
		"empty":  {"empty", "it lists no tests"},
		"dies":   {"dies", "panic: early", "exit status 2"},
		"silent": {"silent", "it lists no sub-tests"},
		"partly": {"partly", "TestY does not list its sub-tests"},
	} {
		_, err := f.Suites(t.Context(), root, filepath.Join(t.TempDir(), "run"), []string{suite})
		wantFault(t, err, fault.Test, words...)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	if _, err := f.Suites(stopped, root, t.TempDir(), []string{"empty"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Without Go, and on a full disk, the test is not to blame.
func TestSuitesWithoutTools(t *testing.T) {
	f, root := newFixture(t), goodModule(t)
	for said, word := range map[string]string{
		"write /x: no space left on device":         "the disk is full",
		"mkdir /x: disk quota exceeded":             "the disk is full",
		"open /x: read-only file system":            "the machine failed",
		"pipe: too many open files":                 "the machine failed",
		"/usr/lib/go/pkg/tool/link: signal: killed": "memory ran out",
		"fork/exec /x: cannot allocate memory":      "memory ran out",
	} {
		tool(t, "go", "echo '"+said+"' >&2; exit 1")
		_, err := f.Suites(t.Context(), root, t.TempDir(), nil)
		wantFault(t, err, fault.Harness, word, said)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := exec.LookPath("go"); err == nil {
		t.Fatal("go is still found")
	}
	_, err := f.Suites(t.Context(), root, t.TempDir(), nil)
	wantFault(t, err, fault.Harness, "bin/setup")
}

// The suites of this project are those that a run takes.
func TestAvailableSuites(t *testing.T) {
	got, err := AvailableSuites("../..")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"cpuaffinity", "sockmapbasic"}, got); diff != "" {
		t.Error(diff)
	}
}
