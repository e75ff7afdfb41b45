// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/internal/fault"
	"patchbay/harness/report"
	"patchbay/harness/tree"
	"patchbay/harness/verdict"
)

// These tests take the real binary, the real kernel, vng and QEMU. They need
// what bin/setup installs and some minutes, and run from make test, which sets
// PATCHBAY_E2E and has built bin/patchbay.

// e2e returns the checkout, or skips.
func e2e(t *testing.T) string {
	t.Helper()
	if os.Getenv("PATCHBAY_E2E") == "" {
		t.Skip("boots real kernels for some minutes: run make test, or set PATCHBAY_E2E=1 after make build")
	}
	return checkout(t)
}

// checkout returns the root of this checkout.
func checkout(tb testing.TB) string {
	tb.Helper()
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		tb.Fatal(err)
	}
	return root
}

// resolveBase opens the user's store and finds a base in it.
func resolveBase(ctx context.Context, name string) (*tree.Store, tree.Commit, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, tree.Commit{}, err
	}
	bases, err := tree.LoadBases(filepath.Join("..", "..", "..", "kernel", "bases.yaml"))
	if err != nil {
		return nil, tree.Commit{}, err
	}
	base, err := bases.Find(name)
	if err != nil {
		return nil, tree.Commit{}, err
	}
	store, err := tree.Open(ctx, cache, nil)
	if err != nil {
		return nil, tree.Commit{}, err
	}
	commit, err := store.Resolve(ctx, tree.Source{Base: base})
	return store, commit, err
}

// result is how a call of patchbay run ended.
type result struct {
	code           int
	stdout, stderr string
	dir            string
	run            *verdict.Run
	took           time.Duration
}

// runPatchbay calls the real binary and reads what it left.
func runPatchbay(t *testing.T, args ...string) result {
	t.Helper()
	root := e2e(t)
	out := filepath.Join(t.TempDir(), "résults of it")
	args = append([]string{"run", "--out", out}, args...)
	cmd := exec.Command(filepath.Join(root, "bin", "patchbay"), args...)
	cmd.Dir = root
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	err := cmd.Run()
	r := result{stdout: stdout.String(), stderr: stderr.String(), dir: filepath.Join(out, "latest"), took: time.Since(begin)}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.dir); err == nil {
		if r.run, err = report.ReadJSON(r.dir); err != nil {
			t.Errorf("the results cannot be read: %v", err)
		}
	}
	t.Logf("patchbay %s: exit code %d after %.1f s", strings.Join(args, " "), r.code, r.took.Seconds())
	return r
}

// want fails the test with all that was said if the exit code is another.
func (r result) want(t *testing.T, code int) {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\n%s\n%s", r.code, code, r.stdout, r.stderr)
	}
	if r.run != nil && r.run.ExitCode != code {
		t.Errorf("results.json says exit code %d, the process %d", r.run.ExitCode, code)
	}
	noQEMU(t)
}

// cell returns the only cell.
func (r result) cell(t *testing.T) *verdict.Cell {
	t.Helper()
	if r.run == nil || len(r.run.Cells) != 1 {
		t.Fatalf("no results\n%s\n%s", r.stdout, r.stderr)
	}
	return &r.run.Cells[0]
}

// outcome counts the tests of a suite by outcome.
func outcomes(c *verdict.Cell, suite string) map[verdict.Outcome]int {
	count := map[verdict.Outcome]int{}
	for _, test := range c.Tests {
		if test.Suite == suite {
			count[test.Outcome]++
		}
	}
	return count
}

// qemus lists the QEMU processes that belong to patchbay.
func qemus() []string {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte("patchbay-agent,path=")) && bytes.Contains(data, []byte("qemu-system")) {
			found = append(found, path)
		}
	}
	return found
}

// noQEMU waits until no QEMU and no temporary folder of ours is left: after a
// kill -9 it is the keepers that see to it, a moment later.
func noQEMU(t *testing.T) {
	t.Helper()
	left := func() []string {
		folders, _ := filepath.Glob(filepath.Join(os.TempDir(), "patchbay-*"))
		return append(folders, qemus()...)
	}
	for deadline := time.Now().Add(20 * time.Second); len(left()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left())
		}
	}
}

// The tests go from the patched kernel to the plain one, and not to and fro:
// the series touches a header that much of the kernel includes.

func breakage(t *testing.T, name string) string {
	return filepath.Join(e2e(t), "kernel", "regressions", "harness", name+".patch")
}

func TestE2EPatchedKernel(t *testing.T) {
	r := runPatchbay(t)
	r.want(t, fault.ExitOK)
	c := r.cell(t)
	for _, suite := range []string{"sockmapbasic", "cpuaffinity"} {
		count := outcomes(c, suite)
		if count[verdict.Pass] == 0 || count[verdict.Skip] > 0 {
			t.Errorf("%s: %v, want all passed and none skipped", suite, count)
		}
	}
	for _, file := range []string{"results.json", "junit.xml", "kernel.log", "console.log", "events.jsonl", "kernel.config", "commands.txt"} {
		if info, err := os.Stat(filepath.Join(r.dir, file)); err != nil || (info.Size() == 0 && file != "console.log") {
			t.Errorf("%s is missing or empty: %v", file, err)
		}
	}
	attributed := false
	for _, test := range c.Tests {
		attributed = attributed || len(test.Log) > 0
	}
	if !attributed {
		t.Error("no kernel log record belongs to any test")
	}
}

func TestE2EBrokenKernel(t *testing.T) {
	r := runPatchbay(t, "--series", "sockmap-cpu-affinity", "--series", breakage(t, "verdict-pass-drops"))
	r.want(t, fault.ExitFailed)
	failed := 0
	for _, test := range r.cell(t).Tests {
		if test.Outcome.Good() {
			continue
		}
		failed++
		if !strings.Contains(r.stdout, test.Name[strings.LastIndexByte(test.Name, '/')+1:]) {
			t.Errorf("the report does not name %s:\n%s", test.Name, r.stdout)
		}
	}
	if failed == 0 {
		t.Error("no test failed")
	}
}

func TestE2ECrash(t *testing.T) {
	r := runPatchbay(t, "--series", "sockmap-cpu-affinity", "--series", breakage(t, "null-dereference"))
	r.want(t, fault.ExitFailed)
	crashed := 0
	for _, test := range r.cell(t).Tests {
		if test.Outcome == verdict.Crash {
			crashed++
			if len(test.Splats) == 0 || len(test.Log) == 0 {
				t.Errorf("%s crashed without its log", test.Name)
			}
		}
	}
	if crashed == 0 || !strings.Contains(r.stdout, "NULL pointer dereference") {
		t.Errorf("%d crashes; the report must show the oops:\n%s", crashed, r.stdout)
	}
}

func TestE2EPanicAtBoot(t *testing.T) {
	r := runPatchbay(t, "--series", "sockmap-cpu-affinity", "--series", breakage(t, "panic-at-boot"))
	r.want(t, fault.ExitFailed)
	c := r.cell(t)
	if c.Outcome != verdict.Boot || !strings.Contains(r.stdout, "no start today") {
		t.Errorf("outcome %v; the report must show the panic:\n%s", c.Outcome, r.stdout)
	}
}

func TestE2EBuildFailures(t *testing.T) {
	r := runPatchbay(t, "--series", "sockmap-cpu-affinity", "--series", breakage(t, "does-not-compile"))
	r.want(t, fault.ExitBuild)
	for _, want := range []string{"net/core/skmsg.c:", "no_such_name"} {
		if !strings.Contains(r.stdout+r.stderr, want) {
			t.Errorf("the report lacks %q:\n%s", want, r.stdout)
		}
	}
	r = runPatchbay(t, "--series", breakage(t, "does-not-apply"))
	r.want(t, fault.ExitBuild)
	for _, want := range []string{"does-not-apply.patch", "net/core/skmsg.c", "hunk 1"} {
		if !strings.Contains(strings.ToLower(r.stdout+r.stderr), want) {
			t.Errorf("the report lacks %q:\n%s", want, r.stdout)
		}
	}
}

func TestE2EBaseKernel(t *testing.T) {
	r := runPatchbay(t, "--series", "none")
	r.want(t, fault.ExitOK)
	c := r.cell(t)
	if count := outcomes(c, "sockmapbasic"); count[verdict.Pass] == 0 || count[verdict.Skip] > 0 {
		t.Errorf("sockmapbasic: %v, want all passed", count)
	}
	skipped := 0
	for _, test := range c.Tests {
		if test.Suite == "cpuaffinity" && test.Outcome == verdict.Skip {
			skipped++
			if !strings.Contains(strings.ToLower(test.Reason), "kernel") {
				t.Errorf("%s is skipped without saying that the kernel lacks the feature: %q", test.Name, test.Reason)
			}
		}
	}
	if skipped == 0 {
		t.Error("no affinity test was skipped on a kernel without affinity")
	}
}

// snapshot describes every file of a tree by mode, time and content.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %v %d %d\n", path, info.Mode(), info.ModTime().UnixNano(), info.Size())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// TestE2EOwnTree runs right after the base kernel was built, from which the
// user's tree differs in one object.
func TestE2EOwnTree(t *testing.T) {
	e2e(t)
	kdir := filepath.Join(t.TempDir(), "mein kernel trée")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=me", "-c", "user.email=me@example.org"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	base := runPatchbay(t, "--series", "none", "--test", "sockmap_copy")
	base.want(t, fault.ExitOK)
	git("clone", "-q", "--shared", "--no-checkout", filepath.Join(cache, "git"), kdir)
	git("-C", kdir, "checkout", "-q", base.cell(t).Commit)
	path := filepath.Join(kdir, "net", "core", "skmsg.c")
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(source, "\nint patchbay_was_here;\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, kdir)
	r := runPatchbay(t, "--kdir", kdir, "--series", "none", "--test", "sockmap_copy")
	r.want(t, fault.ExitOK)
	if after := snapshot(t, kdir); after != before {
		t.Error("the user's tree was changed")
	}
	status := git("-C", kdir, "--no-optional-locks", "status", "--porcelain")
	if status != " M net/core/skmsg.c\n" {
		t.Errorf("git status: %q", status)
	}
	if r.cell(t).Tree == base.cell(t).Tree {
		t.Error("the uncommitted change was not part of what was tested")
	}
}

// TestE2EKillDashNine kills patchbay in each phase of a run.
func TestE2EKillDashNine(t *testing.T) {
	root := e2e(t)
	for _, after := range []time.Duration{50 * time.Millisecond, 800 * time.Millisecond, 2 * time.Second, 4 * time.Second, 6 * time.Second} {
		for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGINT, unix.SIGTERM} {
			out := t.TempDir()
			cmd := exec.Command(filepath.Join(root, "bin", "patchbay"), "run", "--out", out)
			cmd.Dir = root
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			_ = cmd.Process.Signal(sig)
			err := cmd.Wait()
			if sig != unix.SIGKILL && err == nil {
				t.Logf("the run was over %v after its start", after)
			}
			noQEMU(t)
		}
	}
	runPatchbay(t, "--test", "sockmap_copy").want(t, fault.ExitOK)
}
