// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"patchbay/harness/guest"
	"patchbay/harness/report"
)

// The benchmarks of make bench-harness. They take the real kernel; those that
// build one from nothing take long and run only with PATCHBAY_BENCH_COLD.

// bench returns the checkout, or skips.
func bench(b *testing.B) string {
	b.Helper()
	if os.Getenv("PATCHBAY_BENCH") == "" {
		b.Skip("boots real kernels: run make bench-harness")
	}
	return checkout(b)
}

// call runs patchbay and returns the folder of its results.
func call(b *testing.B, root string, args ...string) string {
	b.Helper()
	out := b.TempDir()
	cmd := exec.Command(filepath.Join(root, "bin", "patchbay"), append([]string{"run", "--out", out}, args...)...)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, said)
	}
	return filepath.Join(out, "latest")
}

// BenchmarkRun is a whole run with nothing to build: sec/op from the command to
// the verdict, and its phases.
func BenchmarkRun(b *testing.B) {
	root := bench(b)
	call(b, root)
	phases := map[string]time.Duration{}
	for b.Loop() {
		result, err := report.ReadJSON(call(b, root))
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range result.Cells[0].Phases {
			phases[p.Name] += p.Duration
		}
	}
	for name, sum := range phases {
		b.ReportMetric(sum.Seconds()/float64(b.N), name+"-s/op")
	}
}

// image returns the default kernel's image, built if need be.
func image(b *testing.B, root string) string {
	b.Helper()
	cmd := exec.Command(filepath.Join(root, "bin", "patchbay"), "build")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(out) {
		if path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("image=")); ok {
			return string(path)
		}
	}
	b.Fatal("patchbay build names no image")
	return ""
}

// BenchmarkVNGInit is what BenchmarkRun's boot phase replaces: vng with its own
// init, on the same kernel, running true.
func BenchmarkVNGInit(b *testing.B) {
	root := bench(b)
	link := filepath.Join(b.TempDir(), "bzImage")
	if err := os.Symlink(image(b, root), link); err != nil {
		b.Fatal(err)
	}
	args := []string{"--run", link, "--force-9p", "--cpus", "4", "--memory", "1024M"}
	if accel, _ := guest.Detect(); accel == guest.TCG {
		args = append(args, "--disable-kvm")
	}
	args = append(args, "--", "true")
	for b.Loop() {
		cmd := exec.Command("vng", args...)
		// vng wants three real descriptors.
		in, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		cmd.Stdin = in
		said, err := cmd.CombinedOutput()
		w.Close()
		in.Close()
		if err != nil {
			b.Fatalf("%v\n%s", err, said)
		}
	}
}

// BenchmarkTouch changes net/core/skmsg.c in a user's tree for each run: sec/op
// from the command to the verdict.
func BenchmarkTouch(b *testing.B) {
	root := bench(b)
	kdir := sources(b)
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", kdir, "-c", "user.name=me", "-c", "user.email=me@example.org"}, args...)...)
		if said, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, said)
		}
	}
	git("init", "-q")
	git("add", "-f", "-A")
	git("commit", "-qm", "base")
	path := filepath.Join(kdir, "net", "core", "skmsg.c")
	touch := func() {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			b.Fatal(err)
		}
		// Nothing like it may be in the cache from an earlier run.
		_, err = io.WriteString(f, "/* "+time.Now().String()+" */\n")
		f.Close()
		if err != nil {
			b.Fatal(err)
		}
	}
	// A change of its own, so that it is built and not found: only then does
	// the build folder stand one object away from what is measured.
	touch()
	call(b, root, "--kdir", kdir)
	for b.Loop() {
		touch()
		call(b, root, "--kdir", kdir)
	}
}

// BenchmarkColdBuild builds the default kernel and libbpf in an empty cache:
// cpu-min/op is what the compiler and its helpers used.
func BenchmarkColdBuild(b *testing.B) {
	root := bench(b)
	if os.Getenv("PATCHBAY_BENCH_COLD") == "" {
		b.Skip("takes some twenty minutes: set PATCHBAY_BENCH_COLD=1")
	}
	for b.Loop() {
		cpu(b, func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "patchbay"), "build")
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "PATCHBAY_CACHE="+b.TempDir())
			return cmd
		})
	}
}

// BenchmarkVNGDefaultBuild builds the same sources with vng's own default
// configuration, for comparison.
func BenchmarkVNGDefaultBuild(b *testing.B) {
	bench(b)
	if os.Getenv("PATCHBAY_BENCH_COLD") == "" {
		b.Skip("takes some thirty minutes: set PATCHBAY_BENCH_COLD=1")
	}
	for b.Loop() {
		src := sources(b)
		config := exec.Command("vng", "--kconfig")
		config.Dir = src
		if said, err := config.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, said)
		}
		cpu(b, func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, "make", "-C", src, "-j2", "bzImage")
		})
	}
}

// sources makes a fresh folder with the default base's sources.
func sources(b *testing.B) string {
	b.Helper()
	ctx := context.Background()
	store, commit, err := resolveBase(ctx, defaultBase)
	if err != nil {
		b.Fatal(err)
	}
	src := filepath.Join(b.TempDir(), "linux")
	if err := store.Checkout(ctx, commit, src); err != nil {
		b.Fatal(err)
	}
	return src
}

// cpu runs a command and reports the processor time of it and its children.
func cpu(b *testing.B, command func(context.Context) *exec.Cmd) {
	b.Helper()
	cmd := command(context.Background())
	if said, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, said)
	}
	state := cmd.ProcessState
	b.ReportMetric((state.UserTime() + state.SystemTime()).Minutes(), "cpu-min/op")
}
