// SPDX-License-Identifier: MIT

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/harness/tree"
)

// kernelScript puts checkpatch.pl of a base, and what it reads, into a folder.
func kernelScript(t *testing.T, name string) string {
	t.Helper()
	store, commit, err := resolveBase(t.Context(), name)
	if err != nil {
		if name != defaultBase {
			t.Skipf("the sources of %s cannot be had here: %v", name, err)
		}
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, file := range []string{"checkpatch.pl", "spelling.txt", "const_structs.checkpatch"} {
		data, err := store.Git(t.Context(), tree.Git{}, "cat-file", "blob", commit.ID+":scripts/"+file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "checkpatch.pl")
}

func checkpatch(script string, patches ...string) (string, error) {
	said, err := exec.Command("perl", append([]string{script, "--strict", "--no-tree", "--terse", "--no-summary"}, patches...)...).CombinedOutput()
	return string(said), err
}

// TestLintSeries holds every patch of the project's series against the
// checkpatch.pl of the kernel that it is for.
func TestLintSeries(t *testing.T) {
	if os.Getenv("PATCHBAY_LINT") == "" {
		t.Skip("imports kernel sources: run make lint")
	}
	dirs, err := filepath.Glob(filepath.Join(checkout(t), "kernel", "series", "*", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no series: %v", err)
	}
	for _, dir := range dirs {
		base := filepath.Base(dir)
		t.Run(filepath.Base(filepath.Dir(dir))+"/"+base, func(t *testing.T) {
			script := kernelScript(t, base)
			patches, err := filepath.Glob(filepath.Join(dir, "*.patch"))
			if err != nil || len(patches) == 0 {
				t.Fatalf("no patches: %v", err)
			}
			for _, patch := range patches {
				if strings.HasSuffix(patch, "cover-letter.patch") {
					continue
				}
				if said, err := checkpatch(script, patch); err != nil {
					t.Errorf("checkpatch: %v\n%s", err, said)
				}
				if base != defaultBase {
					continue
				}
				// The same patch with one indentation spoilt must not pass.
				text, err := os.ReadFile(patch)
				if err != nil {
					t.Fatal(err)
				}
				spoilt := filepath.Join(t.TempDir(), filepath.Base(patch))
				if err := os.WriteFile(spoilt, []byte(strings.Replace(string(text), "\n+\t", "\n+        ", 1)), 0o644); err != nil {
					t.Fatal(err)
				}
				if said, err := checkpatch(script, spoilt); err == nil {
					t.Errorf("checkpatch has nothing against spaces for a tab in %s\n%s", patch, said)
				}
			}
		})
	}
}
