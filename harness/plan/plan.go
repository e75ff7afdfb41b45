// SPDX-License-Identifier: MIT

// Package plan says what is to be run: vmconfig files, and the choice of tests.
package plan

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/names"
)

// VMConfig describes a guest. It is one file of vmconfigs/.
type VMConfig struct {
	// Name is the file's name without .yaml.
	Name        string `yaml:"-"`
	Description string `yaml:"description"`
	CPUs        int    `yaml:"cpus"`
	Memory      Size   `yaml:"memory"`
	// Kconfig names fragments of vmconfigs/kconfig/, without .config.
	Kconfig []string `yaml:"kconfig"`
	// Append holds kernel arguments.
	Append []string `yaml:"append"`
	// Suites names folders of tests/.
	Suites    []string  `yaml:"suites"`
	Deadlines Deadlines `yaml:"deadlines"`
	// Fragments are the files that Kconfig names.
	Fragments []string `yaml:"-"`
}

// Deadlines are stated for an idle host with KVM.
type Deadlines struct {
	// Boot is from the start of vng to the agent's hello.
	Boot time.Duration `yaml:"boot"`
	// Test bounds a test or sub-test, Suite all of a suite.
	Test  time.Duration `yaml:"test"`
	Suite time.Duration `yaml:"suite"`
}

// Size is a number of bytes, written with M or G.
type Size int64

// UnmarshalYAML reads sizes like 512M and 1G, in binary units.
func (s *Size) UnmarshalYAML(data []byte) error {
	text := strings.TrimSpace(string(data))
	unit := map[byte]int64{'M': 1 << 20, 'G': 1 << 30}
	if n := len(text); n > 1 && unit[text[n-1]] != 0 {
		if v, err := strconv.ParseInt(text[:n-1], 10, 32); err == nil && v > 0 {
			*s = Size(v * unit[text[n-1]])
			return nil
		}
	}
	return fmt.Errorf("%q is no size like 512M or 1G", text)
}

// VMConfigs lists the names of the vmconfigs in dir.
func VMConfigs(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, f := range files {
		found = append(found, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	return found, nil
}

// LoadVMConfig reads the vmconfig of that name from dir and checks it. All of
// its faults are reported together.
func LoadVMConfig(dir, name string) (*VMConfig, error) {
	file := filepath.Join(dir, name+".yaml")
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		known, _ := VMConfigs(dir)
		return nil, names.Unknown("vmconfig", name, known)
	}
	broken := func(err error) error {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "reading a vmconfig", Subject: file, Err: err,
			Next: "compare it with vmconfigs/default.yaml, which explains every field",
		}
	}
	if err != nil {
		return nil, broken(err)
	}
	c := &VMConfig{Name: name}
	if err := yaml.UnmarshalWithOptions(data, c, yaml.Strict()); err != nil {
		return nil, broken(err)
	}
	var faults *multierror.Error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = multierror.Append(faults, fmt.Errorf(format, args...))
		}
	}
	need(c.CPUs >= 1 && c.CPUs <= 255, "cpus: %d is not between 1 and 255", c.CPUs)
	need(c.Memory >= 128<<20, "memory: a guest needs 128M at least")
	need(len(c.Kconfig) > 0, "kconfig: no fragment is named")
	need(c.Deadlines.Boot > 0 && c.Deadlines.Test > 0 && c.Deadlines.Suite > 0, "deadlines: boot, test and suite must be set")
	known, _ := filepath.Glob(filepath.Join(dir, "kconfig", "*.config"))
	for i := range known {
		known[i] = strings.TrimSuffix(filepath.Base(known[i]), ".config")
	}
	for _, f := range c.Kconfig {
		if !slices.Contains(known, f) {
			faults = multierror.Append(faults, names.Unknown("kconfig fragment", f, known))
		}
		c.Fragments = append(c.Fragments, filepath.Join(dir, "kconfig", f+".config"))
	}
	if err := faults.ErrorOrNil(); err != nil {
		return nil, broken(err)
	}
	return c, nil
}

// Scale is the factor that stretches deadlines: emulation and a busy host both
// slow a guest down. load is the host's load average over the last minute,
// cpus the number of its CPUs.
//
// A guest that takes 3.5 s under TCG alone on two cores took 16 to 20 s beside
// a build, which is what the share of load stands for.
func Scale(kvm bool, load float64, cpus int) float64 {
	scale := 1.0
	if !kvm {
		scale = 4
	}
	return scale * min(max(load/float64(max(cpus, 1)), 1), 5)
}

// Choose returns, of the tests each suite has, those that the patterns choose:
// all if there is no pattern. A pattern is a suite, a test or a sub-test,
// exactly ("sockmapbasic", "sockmapbasic/TestX/sub"), the last element alone
// ("sub"), or a glob over any of these. Every pattern must choose something;
// those that do not are reported together.
func Choose(suites map[string][]string, patterns []string) (map[string][]string, error) {
	if len(patterns) == 0 {
		return suites, nil
	}
	chosen := map[string][]string{}
	var faults *multierror.Error
	for _, pattern := range patterns {
		hit := false
		for suite, tests := range suites {
			for _, test := range tests {
				if !matches(pattern, suite+"/"+test) {
					continue
				}
				hit = true
				if !slices.Contains(chosen[suite], test) {
					chosen[suite] = append(chosen[suite], test)
				}
			}
		}
		if !hit {
			var known []string
			for suite, tests := range suites {
				known = append(known, suite)
				for _, test := range tests {
					known = append(known, suite+"/"+test, path.Base(test))
				}
			}
			faults = multierror.Append(faults, names.Unknown("test", pattern, known))
		}
	}
	for suite, tests := range chosen {
		// In the order in which the suite runs them.
		all := suites[suite]
		slices.SortFunc(tests, func(a, b string) int { return slices.Index(all, a) - slices.Index(all, b) })
	}
	return chosen, faults.ErrorOrNil()
}

// matches reports whether pattern names full, one of its parents, or its last
// element. Globs do not cross slashes.
func matches(pattern, full string) bool {
	if ok, _ := path.Match(pattern, path.Base(full)); ok {
		return true
	}
	for name := full; ; {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
		at := strings.LastIndexByte(name, '/')
		if at < 0 {
			return false
		}
		name = name[:at]
	}
}
