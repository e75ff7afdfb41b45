// SPDX-License-Identifier: MIT

package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

// write makes a folder of vmconfigs with one file and one fragment.
func write(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "kconfig"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"x.yaml": content, "kconfig/lean.config": "CONFIG_NET=y\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const good = `
cpus: 2
memory: 512M
kconfig: [lean]
append: [a=b]
suites: [s]
deadlines: {boot: 1s, test: 2s, suite: 3m}
`

func TestLoadVMConfig(t *testing.T) {
	dir := write(t, good)
	got, err := LoadVMConfig(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	want := &VMConfig{
		Name: "x", CPUs: 2, Memory: 512 << 20, Kconfig: []string{"lean"}, Append: []string{"a=b"}, Suites: []string{"s"},
		Deadlines: Deadlines{Boot: time.Second, Test: 2 * time.Second, Suite: 3 * time.Minute},
		Fragments: []string{filepath.Join(dir, "kconfig", "lean.config")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoadVMConfigRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		want    []string
	}{
		"unknown field":    {good + "cpu: 3\n", []string{"cpu"}},
		"bad size":         {strings.Replace(good, "512M", "512K", 1), []string{"no size like"}},
		"no YAML":          {"cpus: [", []string{"reading a vmconfig"}},
		"several at once":  {strings.Replace(strings.Replace(good, "cpus: 2", "cpus: 0", 1), "512M", "1M", 1), []string{"cpus: 0", "128M at least"}},
		"unknown fragment": {strings.Replace(good, "[lean]", "[laen]", 1), []string{"did you mean lean"}},
		"no deadline":      {strings.Replace(good, "test: 2s, ", "", 1), []string{"deadlines"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadVMConfig(write(t, tc.content), "x")
			if fault.ExitCode(err) != fault.ExitConfiguration {
				t.Fatalf("got %v, want a configuration error", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %q", err, want)
				}
			}
		})
	}
	if _, err := LoadVMConfig(write(t, good), "y"); err == nil || !strings.Contains(err.Error(), "did you mean x") {
		t.Errorf("unknown name: %v", err)
	}
}

// TestTracked loads every vmconfig of the project.
func TestTracked(t *testing.T) {
	dir := filepath.Join("..", "..", "vmconfigs")
	all, err := VMConfigs(dir)
	if err != nil || len(all) == 0 {
		t.Fatalf("vmconfigs: %v, %v", all, err)
	}
	for _, name := range all {
		c, err := LoadVMConfig(dir, name)
		if err != nil {
			t.Error(err)
			continue
		}
		if c.Description == "" {
			t.Errorf("%s has no description", name)
		}
	}
}

func TestScale(t *testing.T) {
	for _, tc := range []struct {
		kvm  bool
		load float64
		cpus int
		want float64
	}{
		{true, 0, 8, 1},
		{true, 16, 8, 2},
		{false, 0.5, 2, 4},
		{false, 4, 2, 8},
		{false, 1000, 2, 20},
		{true, 1, 0, 1},
	} {
		if got := Scale(tc.kvm, tc.load, tc.cpus); got != tc.want {
			t.Errorf("Scale(%v, %v, %d) = %v, want %v", tc.kvm, tc.load, tc.cpus, got, tc.want)
		}
	}
}

func TestChoose(t *testing.T) {
	suites := map[string][]string{
		"basic": {"TestA/copy", "TestA/copy_more", "TestB"},
		"other": {"TestA/copy", "TestC/x"},
	}
	for _, tc := range []struct {
		patterns []string
		want     map[string][]string
	}{
		{nil, suites},
		{[]string{"basic"}, map[string][]string{"basic": {"TestA/copy", "TestA/copy_more", "TestB"}}},
		{[]string{"basic/TestA/copy"}, map[string][]string{"basic": {"TestA/copy"}}},
		{[]string{"copy"}, map[string][]string{"basic": {"TestA/copy"}, "other": {"TestA/copy"}}},
		{[]string{"other/TestC", "basic/TestB", "basic/TestA/copy"}, map[string][]string{"basic": {"TestA/copy", "TestB"}, "other": {"TestC/x"}}},
		{[]string{"basic/TestA/copy*"}, map[string][]string{"basic": {"TestA/copy", "TestA/copy_more"}}},
	} {
		got, err := Choose(suites, tc.patterns)
		if err != nil {
			t.Errorf("%v: %v", tc.patterns, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.patterns, diff)
		}
	}
	_, err := Choose(suites, []string{"basc", "copy", "TestA/cop"})
	if err == nil || !strings.Contains(err.Error(), "did you mean basic?") || !strings.Contains(err.Error(), "TestA/cop") {
		t.Errorf("two unknown patterns: %v", err)
	}
}
