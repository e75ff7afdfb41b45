// SPDX-License-Identifier: MIT

package series

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/names"
)

// None is the spec that means no series at all.
const None = "none"

// List returns the names of the series below root (kernel/series) and, for
// each, the bases that it is there for, oldest first.
func List(root string) (map[string][]string, error) {
	all := map[string][]string{}
	dirs, err := filepath.Glob(filepath.Join(quoteGlob(root), "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			name := filepath.Base(filepath.Dir(dir))
			all[name] = append(all[name], filepath.Base(dir))
		}
	}
	for _, bases := range all {
		slices.SortFunc(bases, func(a, b string) int {
			if c := slices.Compare(numbers(a), numbers(b)); c != 0 {
				return c
			}
			return strings.Compare(a, b)
		})
	}
	return all, nil
}

// quoteGlob makes a path stand for itself in a glob pattern.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// numbers returns the first two numbers of a version: v6.12 and 6.12.3-rc1 are
// both 6, 12.
func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		end := strings.IndexFunc(part, func(c rune) bool { return c < '0' || c > '9' })
		if end >= 0 {
			part = part[:end]
		}
		n, err := strconv.Atoi(part)
		if err != nil || len(all) == 2 {
			break
		}
		all = append(all, n)
	}
	return all
}

// Find returns the folder of the named series for the base: root/NAME/BASE. If
// there is none the error names the nearest, or the bases that it is there for.
func Find(root, name, base string) (string, error) {
	all, err := List(root)
	if err != nil {
		return "", err
	}
	bases, ok := all[name]
	if !ok {
		known := make([]string, 0, len(all))
		for n := range all {
			known = append(known, n)
		}
		return "", names.Unknown("series", name, known)
	}
	if !slices.Contains(bases, base) {
		return "", &fault.Error{
			Blame: fault.Configuration, Doing: "looking up a series", Subject: name,
			Err:  fmt.Errorf("it is not there for %s", base),
			Next: "it is there for " + strings.Join(bases, ", ") + "; choose one of these, or put the patches for " + base + " into " + filepath.Join(root, name, base),
		}
	}
	return filepath.Join(root, name, base), nil
}

// Nearest returns the base for which the named series is most likely to fit
// sources of the given version ("6.13.0-rc3"): the newest that is not newer,
// or else the oldest.
func Nearest(root, name, version string) (string, error) {
	all, err := List(root)
	if err != nil {
		return "", err
	}
	bases := all[name]
	if len(bases) == 0 {
		return Find(root, name, "")
	}
	best := bases[0]
	for _, b := range bases {
		if slices.Compare(numbers(b), numbers(version)) <= 0 {
			best = b
		}
	}
	return best, nil
}

// Load reads all series that a user asked for, in that order. A spec is "-",
// the name of a series below root, or else a path; "none" stands alone and
// means no series. base is what a named series must be there for.
func Load(ctx context.Context, root, base string, specs []string, stdin io.Reader) ([]Series, error) {
	wrong := func(spec, what, next string) error {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "reading the series", Subject: called(spec), Err: errors.New(what), Next: next,
		}
	}
	if slices.Contains(specs, None) {
		if len(specs) > 1 {
			return nil, wrong(None, "it means no series at all, but others are named too", "leave out either")
		}
		return nil, nil
	}
	var all []Series
	read := false
	for _, spec := range specs {
		path := spec
		switch {
		case spec == "":
			return nil, wrong(spec, "its name is empty", "name a series, a path, - or none")
		case spec == Stdin:
			if read {
				return nil, wrong(spec, "it can be read only once", "")
			}
			read = true
		case !strings.Contains(spec, "/"):
			found, err := Find(root, spec, base)
			if err == nil {
				path = found
			} else if _, missing := os.Stat(spec); missing != nil {
				return nil, err
			} else if _, known := os.Stat(filepath.Join(root, spec)); known == nil {
				// A file of the same name is not what was meant.
				return nil, err
			}
		}
		s, err := Read(ctx, path, stdin)
		if err != nil {
			return nil, err
		}
		s.Name = spec
		all = append(all, s)
	}
	return all, nil
}
