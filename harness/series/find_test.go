// SPDX-License-Identifier: MIT

package series

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/harness/internal/fault"
)

// collection is a folder like kernel/series, with a glob's characters in its name.
func collection(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "a [series] *")
	for _, base := range []string{"v6.6", "v6.12", "v10.0"} {
		write(t, filepath.Join(root, "affinity", base, "0001-a.patch"), letter("[PATCH 1/1] for "+base, base))
	}
	write(t, filepath.Join(root, "other", "v6.12", "0001-a.patch"), letter("[PATCH 1/1] other", "other"))
	write(t, filepath.Join(root, "other", "README"), "no base")
	return root
}

func TestList(t *testing.T) {
	got, err := List(collection(t))
	want := map[string][]string{"affinity": {"v6.6", "v6.12", "v10.0"}, "other": {"v6.12"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := List(filepath.Join(t.TempDir(), "none")); err != nil || len(got) != 0 {
		t.Errorf("of no folder: %v, %v", got, err)
	}
}

func TestFind(t *testing.T) {
	root := collection(t)
	if dir, err := Find(root, "affinity", "v6.12"); err != nil || dir != filepath.Join(root, "affinity", "v6.12") {
		t.Errorf("got %q, %v", dir, err)
	}
	for name, tc := range map[string]struct{ name, base, says string }{
		"unknown series": {"afinity", "v6.12", "affinity"},
		"unknown base":   {"affinity", "v6.11", "v6.6, v6.12, v10.0"},
	} {
		if _, err := Find(root, tc.name, tc.base); fault.ExitCode(err) != fault.ExitConfiguration || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNearest(t *testing.T) {
	root := collection(t)
	for version, want := range map[string]string{
		"6.12.117": "v6.12", "6.13.0-rc3": "v6.12", "6.11.1": "v6.6", "6.6.0": "v6.6", "5.15.0": "v6.6", "9.9.0": "v6.12", "10.0.0": "v10.0", "11.1.0": "v10.0",
	} {
		if got, err := Nearest(root, "affinity", version); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", version, got, err, want)
		}
	}
	if _, err := Nearest(root, "afinity", "6.12"); fault.ExitCode(err) != fault.ExitConfiguration {
		t.Errorf("an unknown series: %v", err)
	}
}

func TestLoad(t *testing.T) {
	root := collection(t)
	work := t.TempDir()
	t.Chdir(work)
	write(t, "mine.patch", letter("[PATCH] mine", "mine"))
	// Not what is meant by the name of a known series, whatever base it is for.
	write(t, "other", letter("[PATCH] a file", "file"))
	load := func(specs ...string) ([]string, error) {
		all, err := Load(context.Background(), root, "v6.12", specs, strings.NewReader(letter("[PATCH] piped", "piped")))
		got := []string{}
		for _, s := range all {
			got = append(got, s.Name+": "+strings.Join(subjects(s), ","))
		}
		return got, err
	}
	for _, tc := range []struct{ specs, want []string }{
		{nil, []string{}},
		{[]string{"none"}, []string{}},
		{[]string{"affinity"}, []string{"affinity: for v6.12"}},
		{[]string{"mine.patch", "-", "other", "./other"}, []string{"mine.patch: mine", "-: piped", "other: other", "./other: a file"}},
		{[]string{"affinity", "mine.patch"}, []string{"affinity: for v6.12", "mine.patch: mine"}},
	} {
		if got, err := load(tc.specs...); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%q: got %q, %v; want %q", tc.specs, got, err, tc.want)
		}
	}
	for _, tc := range []struct {
		specs []string
		says  string
	}{
		{[]string{"none", "affinity"}, "no series at all"},
		{[]string{""}, "empty"},
		{[]string{"-", "-"}, "only once"},
		{[]string{"afinity"}, "affinity"},
		{[]string{"./gone.patch"}, "gone.patch"},
	} {
		if got, err := load(tc.specs...); fault.ExitCode(err) != fault.ExitConfiguration || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: got %q, %v; want %q", tc.specs, got, err, tc.says)
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "other", "v6.12")); err != nil {
		t.Fatal(err)
	}
	if got, err := load("other"); err == nil {
		t.Errorf("a known series that is not there for the base was read from a file: %q", got)
	}
}
