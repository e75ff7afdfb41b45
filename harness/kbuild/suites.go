// SPDX-License-Identifier: MIT

package kbuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/filelock"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/internal/names"
	"patchbay/harness/internal/progress"
)

// Suite is a test binary that can run in a guest.
type Suite struct {
	// Name is the folder below tests/, or the file's name without .test.
	Name string `json:"name"`
	// Binary is its absolute path.
	Binary string `json:"binary"`
	// Tests are the names of its tests in the order in which they run. Those
	// of a suite that uses the subtest helper are its sub-tests, TestA/sub.
	Tests []string `json:"tests"`
	// SelfMarking says that the suite uses the helper: it marks in the kernel
	// log where each test begins and ends.
	SelfMarking bool `json:"self_marking"`
}

// AvailableSuites names the suites of a module: the folders of tests/ that have
// test files.
func AvailableSuites(moduleRoot string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(escapeGlob(moduleRoot), "tests", "*", "*_test.go"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, path := range found {
		name := filepath.Base(filepath.Dir(path))
		// As for the go command, these hold no packages of their own.
		if name == "internal" || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
			continue
		}
		all = append(all, name)
	}
	return slices.Compact(slices.Sorted(slices.Values(all))), nil
}

// Suites builds the named suites of a module into dir, which should be a folder
// of this run alone, and lists their tests. Without names it takes all that
// AvailableSuites has. A name with a slash, or one that ends in .test, is a
// finished test binary; it stays where it is.
//
// A suite that does not compile is blamed on the test.
func (b *Builder) Suites(ctx context.Context, moduleRoot, dir string, wanted []string) (suites []Suite, err error) {
	b.News.Send(progress.Event{Step: "tests", State: progress.Started})
	defer func() { b.News.Send(closing("tests", err, fmt.Sprintf("%d suites", len(suites)))) }()

	known, err := AvailableSuites(moduleRoot)
	if err != nil {
		return nil, suitesFailed(moduleRoot, err)
	}
	if len(wanted) == 0 {
		wanted = known
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, suitesFailed(dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, suitesFailed(dir, err)
	}
	var build []string
	for _, w := range wanted {
		s := Suite{Name: w}
		switch {
		case strings.ContainsRune(w, filepath.Separator) || strings.HasSuffix(w, ".test"):
			if s.Binary, err = filepath.Abs(w); err != nil {
				return nil, suitesFailed(w, err)
			}
			s.Name = strings.TrimSuffix(filepath.Base(w), ".test")
		case slices.Contains(known, w):
			s.Binary = filepath.Join(dir, w+".test")
			build = append(build, "./tests/"+w)
		default:
			return nil, names.Unknown("suite", w, known)
		}
		if slices.ContainsFunc(suites, func(o Suite) bool { return o.Name == s.Name }) {
			return nil, &fault.Error{
				Blame: fault.Configuration, Doing: "choosing suites", Subject: s.Name,
				Err: errors.New("two suites have this name"), Next: "name each once",
			}
		}
		suites = append(suites, s)
	}
	if len(suites) == 0 {
		return nil, &fault.Error{
			Blame: fault.Configuration, Doing: "choosing suites", Subject: filepath.Join(moduleRoot, "tests"),
			Err: errors.New("there is none"), Next: "put test files into a folder below tests/, or name a test binary",
		}
	}
	if build != nil {
		if err := b.buildSuites(ctx, moduleRoot, dir, build); err != nil {
			return nil, err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range suites {
		group.Go(func() error { return suites[i].list(ctx) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return suites, nil
}

// buildSuites builds where it did so before, so that go need not link again
// what has not changed, and gives this run its own copies.
func (b *Builder) buildSuites(ctx context.Context, moduleRoot, dir string, packages []string) error {
	sum := sha256.Sum256([]byte(moduleRoot))
	kept := filepath.Join(b.CacheDir, "tests", hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return cacheFailed(kept, err)
	}
	path := kept + ".lock"
	lock, err := filelock.Lock(ctx, path, nil)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return cacheFailed(path, err)
	}
	defer lock.Close()
	if err := compileTests(ctx, moduleRoot, kept, packages); err != nil {
		return err
	}
	for _, p := range packages {
		name := filepath.Base(p) + ".test"
		data, err := os.ReadFile(filepath.Join(kept, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o755)
		}
		if err != nil {
			return suitesFailed(dir, err)
		}
	}
	return nil
}

func suitesFailed(path string, err error) error {
	return &fault.Error{
		Blame: fault.Harness, Doing: "preparing the test binaries", Subject: path, Err: err,
		Next: "see to it that the folder is there and writable, and the disk not full",
	}
}

// compileTests builds all packages in one go: what they share is built once.
func compileTests(ctx context.Context, moduleRoot, dir string, packages []string) error {
	args := append([]string{
		"test", "-c", "-trimpath", "-ldflags=-s -w", "-o", dir + string(filepath.Separator),
	}, packages...)
	cmd := keeper.Command(ctx, "go", args...)
	cmd.Dir = moduleRoot
	// Without cgo they are static: the guest has no C library.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound):
		return &fault.Error{
			Blame: fault.Harness, Doing: "compiling the tests", Err: err,
			Next: "bin/setup says how to get Go",
		}
	}
	const doing = "compiling the tests"
	subject := strings.Join(packages, " ")
	all := strings.Split(strings.TrimSpace(strings.ToValidUTF8(out.String(), "\uFFFD")), "\n")
	if trouble := hostTrouble(doing, subject, all); trouble != nil {
		return trouble
	}
	const shown = 20
	if more := len(all) - shown; more > 0 {
		all = append(all[:shown], fmt.Sprintf("... and %d more lines", more))
	}
	return &fault.Error{
		Blame: fault.Test, Doing: doing, Subject: subject,
		Err: errors.New("they do not compile"), Said: strings.Join(all, "\n"),
		Next: "go vet " + subject + " says the same",
	}
}

const (
	// listMark begins a line of a suite that lists its sub-tests; what
	// follows is a name. tests/internal/subtest prints it.
	listMark = "patchbay-list: "
	// listPatience is ample for a program that only prints a few lines.
	listPatience = 30 * time.Second
)

// list asks the binary for its tests.
func (s *Suite) list(ctx context.Context) error {
	if err := s.fitForGuest(); err != nil {
		return err
	}
	out, err := s.ask(ctx, "0", "-test.list=.*")
	if err != nil {
		return err
	}
	top := testNames(out)
	if len(top) == 0 {
		return s.wrong(errors.New("it lists no tests"), out, "a suite needs at least one func TestX(t *testing.T)")
	}
	// Only a binary that has the helper in it is run: the tests of any other
	// would do on this machine what they are to do in a guest.
	data, err := os.ReadFile(s.Binary)
	if err != nil {
		return suitesFailed(s.Binary, err)
	}
	if !bytes.Contains(data, []byte(listMark)) {
		s.Tests = top
		return nil
	}
	out, err = s.ask(ctx, "1", "-test.run=^("+strings.Join(top, "|")+")$")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), listMark); ok {
			s.Tests = append(s.Tests, name)
		}
	}
	if s.Tests == nil {
		return s.wrong(errors.New("it lists no sub-tests"), out, "hand them to subtest.Run")
	}
	for _, t := range top {
		if !slices.ContainsFunc(s.Tests, func(sub string) bool { return strings.HasPrefix(sub, t+"/") }) {
			return s.wrong(fmt.Errorf("%s does not list its sub-tests, as others in it do", t), out, "hand them to subtest.Run there too")
		}
	}
	s.SelfMarking = true
	return nil
}

var testName = regexp.MustCompile(`^Test(?:[^\p{Ll}\s]\S*)?$`)

// testNames picks the tests out of what -test.list prints: it lists
// benchmarks, fuzz targets and examples as well.
func testNames(out string) (list []string) {
	for line := range strings.Lines(out) {
		if name := strings.TrimRight(line, "\r\n"); testName.MatchString(name) {
			list = append(list, name)
		}
	}
	return list
}

// ask runs the binary on this machine, in an empty folder.
func (s *Suite) ask(ctx context.Context, list string, args ...string) (string, error) {
	dir, remove, err := keeper.TempDir("patchbay-list-")
	if err != nil {
		return "", suitesFailed(os.TempDir(), err)
	}
	defer remove()
	within, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	cmd := keeper.Command(within, s.Binary, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PATCHBAY_LIST=" + list}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case within.Err() != nil:
		return "", s.wrong(fmt.Errorf("it did not answer within %v", listPatience), stdout.String()+stderr.String(), "see what holds it up before its tests start")
	case err != nil:
		return "", s.wrong(err, stdout.String()+stderr.String(), "is it a Go test binary? go test -c makes one")
	}
	return stdout.String(), nil
}

// fitForGuest checks that the binary can run where there are no libraries.
func (s *Suite) fitForGuest() error {
	info, err := os.Stat(s.Binary)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &fault.Error{
			Blame: fault.Configuration, Doing: "looking for a test binary", Subject: s.Binary, Err: err,
			Next: "name a file that is there, or a folder of tests/ without a slash",
		}
	case err != nil:
		return suitesFailed(s.Binary, err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return &fault.Error{
			Blame: fault.Configuration, Doing: "looking for a test binary", Subject: s.Binary,
			Err: errors.New("it is no executable file"), Next: "go test -c makes one",
		}
	}
	f, err := elf.Open(s.Binary)
	if err != nil {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "looking at a test binary", Subject: s.Binary, Err: err,
			Next: "go test -c makes one that will do",
		}
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "looking at a test binary", Subject: s.Binary,
			Err:  errors.New("it needs shared libraries, which the guest does not have"),
			Next: "build it with CGO_ENABLED=0",
		}
	}
	return nil
}

func (s *Suite) wrong(err error, said, next string) error {
	return &fault.Error{
		Blame: fault.Test, Doing: "listing the tests of a suite", Subject: s.Name, Err: err,
		Said: tail([]byte(said), 10), Next: next,
	}
}
