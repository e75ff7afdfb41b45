// SPDX-License-Identifier: MIT

package kbuild

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
)

// setting is one line of a kconfig fragment.
type setting struct {
	// symbol is the name without CONFIG_; value is as kconfig writes it, n
	// for what is not set.
	symbol, value string
	// optional allows the tree not to know the symbol.
	optional bool
	// from is where it stands: file:line.
	from string
}

// line is the setting as kconfig reads it.
func (s setting) line() string {
	if s.value == "n" {
		return "# CONFIG_" + s.symbol + " is not set"
	}
	return "CONFIG_" + s.symbol + "=" + s.value
}

// fragments are kconfig fragments, read and merged.
type fragments struct {
	// names are the file names without folders.
	names []string
	// contents is one entry per fragment: its settings without comments.
	contents []string
	// merged has one setting per symbol, in order of appearance.
	merged []setting
	notes  []string
}

// text is the merged fragment as kconfig reads it.
func (f *fragments) text() []byte {
	var b bytes.Buffer
	for _, s := range f.merged {
		b.WriteString(s.line() + "\n")
	}
	return b.Bytes()
}

var (
	settingLine = regexp.MustCompile(`^CONFIG_(\w+)=("(?:[^"\\]|\\.)*"|[^\s"#]+)\s*(?:#\s*(.*))?$`)
	notSetLine  = regexp.MustCompile(`^#\s*CONFIG_(\w+) is not set\s*(?:#\s*(.*))?$`)
	// looseLine is a comment that was probably meant to be a setting.
	looseLine = regexp.MustCompile(`^#\s*CONFIG_\w+\s*=`)
)

// readFragments reads and merges fragment files. On top of what kconfig allows
// it takes comments at the end of a line; one that begins with the word
// "optional" means that the tree need not know the symbol.
func readFragments(paths []string) (*fragments, error) {
	var (
		all  fragments
		errs *multierror.Error
		at   = map[string]int{}
	)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			errs = multierror.Append(errs, &fault.Error{
				Blame: fault.Configuration, Doing: "reading a kconfig fragment", Subject: path, Err: err,
				Next: "correct the list of fragments in the vmconfig, or the file's permissions",
			})
			continue
		}
		name := filepath.Base(path)
		all.names = append(all.names, name)
		var content strings.Builder
		for i, line := range strings.Split(string(data), "\n") {
			from := fmt.Sprintf("%s:%d", name, i+1)
			s, ok, err := parseSetting(strings.TrimSpace(line))
			if err != nil {
				errs = multierror.Append(errs, &fault.Error{
					Blame: fault.Configuration, Doing: "reading a kconfig fragment",
					Subject: fmt.Sprintf("%s:%d", path, i+1), Err: err, Said: line,
					Next: "write CONFIG_X=value, or # CONFIG_X is not set; # begins a comment",
				})
			}
			if err != nil || !ok {
				continue
			}
			s.from = from
			fmt.Fprintln(&content, s.line(), s.optional)
			old, seen := at[s.symbol]
			if !seen {
				at[s.symbol] = len(all.merged)
				all.merged = append(all.merged, s)
				continue
			}
			if before := all.merged[old]; before.value != s.value {
				all.notes = append(all.notes, fmt.Sprintf("%s sets CONFIG_%s=%s and overrides %s, which sets it to %s",
					s.from, s.symbol, s.value, before.from, before.value))
			}
			all.merged[old] = s
		}
		all.contents = append(all.contents, content.String())
	}
	if err := errs.ErrorOrNil(); err != nil {
		return nil, err
	}
	if len(all.merged) == 0 {
		return nil, &fault.Error{
			Blame: fault.Configuration, Doing: "reading kconfig fragments", Subject: strings.Join(paths, ", "),
			Err: errors.New("they set nothing"), Next: "name at least one fragment with settings",
		}
	}
	return &all, nil
}

func parseSetting(line string) (s setting, ok bool, err error) {
	var comment string
	if m := settingLine.FindStringSubmatch(line); m != nil {
		s.symbol, s.value, comment = m[1], m[2], m[3]
	} else if m := notSetLine.FindStringSubmatch(line); m != nil {
		s.symbol, s.value, comment = m[1], "n", m[2]
	} else if line == "" || line[0] == '#' && !looseLine.MatchString(line) {
		return s, false, nil
	} else if line[0] == '#' {
		return s, false, errors.New("a setting that is commented out: leave it out, or say that it is not set")
	} else {
		return s, false, errors.New("this is no setting")
	}
	word, _, _ := strings.Cut(comment, " ")
	s.optional = strings.Trim(word, ":,;.") == "optional"
	return s, true, nil
}

// configuration is a resolved .config: symbols and their values as written.
// What is not in it is n.
type configuration map[string]string

func parseConfiguration(data []byte) configuration {
	c := configuration{}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "CONFIG_"); ok {
			if symbol, value, ok := strings.Cut(rest, "="); ok {
				c[symbol] = value
			}
		}
	}
	return c
}

// value returns what the symbol is set to.
func (c configuration) value(symbol string) string {
	if v, ok := c[symbol]; ok {
		return v
	}
	return "n"
}

// countSet counts the symbols at y.
func countSet(config []byte) int {
	n := 0
	for _, v := range parseConfiguration(config) {
		if v == "y" {
			n++
		}
	}
	return n
}

// sameValue compares what was asked for with what came out. Numbers may be
// written differently: 0x10 is 16.
func sameValue(a, b string) bool {
	if a == b {
		return true
	}
	x, err1 := strconv.ParseInt(a, 0, 64)
	y, err2 := strconv.ParseInt(b, 0, 64)
	return err1 == nil && err2 == nil && x == y
}

// configure brings the slot's .config to what the fragments resolve to in this
// tree, checks it, and returns what is worth noting. The file is left alone if
// it would stay the same: what depends on it need not be built again then.
func configure(m *maker, j job) (notes []string, err error) {
	s := m.slot
	config := filepath.Join(s.out(), ".config")
	merged := filepath.Join(s.dir, "fragment.config")
	text := j.fragments.text()
	if !s.configured(merged, text) {
		// Removed first and written last: as long as it is missing, the
		// .config does not count as resolved from it.
		if err := os.Remove(merged); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, slotFailed(merged, err)
		}
		request := filepath.Join(s.dir, "request.config")
		if err := os.WriteFile(request, text, 0o644); err != nil {
			return nil, slotFailed(request, err)
		}
		if err := os.MkdirAll(s.out(), 0o755); err != nil {
			return nil, slotFailed(s.out(), err)
		}
		fresh := config + ".fresh"
		if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, slotFailed(fresh, err)
		}
		if err := m.allnoconfig(request, fresh); err != nil {
			return nil, err
		}
		if err := replaceIfDifferent(fresh, config); err != nil {
			return nil, slotFailed(config, err)
		}
	}
	data, err := os.ReadFile(config)
	if err != nil {
		return nil, slotFailed(config, err)
	}
	notes, err = check(parseConfiguration(data), j, s.src())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(merged, text, 0o644); err != nil {
		return nil, slotFailed(merged, err)
	}
	return notes, nil
}

// configured says whether .config is what these settings resolve to: they are
// the same as last time, and no Kconfig file is newer than that.
func (s *slot) configured(merged string, text []byte) bool {
	info, err := os.Stat(merged)
	if err != nil {
		return false
	}
	if have, err := os.ReadFile(merged); err != nil || !bytes.Equal(have, text) {
		return false
	}
	if _, err := os.Stat(filepath.Join(s.out(), ".config")); err != nil {
		return false
	}
	// make's own list of the files that the configuration came from. The
	// makefiles and scripts count too: Kconfig files ask them for versions.
	deps, err := os.ReadFile(filepath.Join(s.out(), "include/config/auto.conf.cmd"))
	if err != nil {
		return false
	}
	files := kconfigFile.FindAllString(string(deps), -1)
	if !slices.Contains(files, "Kconfig") && !slices.Contains(files, filepath.Join(s.src(), "Kconfig")) {
		return false
	}
	scripts, err := filepath.Glob(filepath.Join(escapeGlob(s.src()), "scripts", "*"))
	if err != nil {
		return false
	}
	for _, f := range append(append(files, scripts...), "Makefile") {
		if !filepath.IsAbs(f) {
			f = filepath.Join(s.src(), f)
		}
		if i, err := os.Stat(f); err != nil || !i.IsDir() && i.ModTime().After(info.ModTime()) {
			return false
		}
	}
	return true
}

var kconfigFile = regexp.MustCompile(`[^\s:\\()$]*Kconfig[^\s:\\()]*`)

func replaceIfDifferent(fresh, path string) error {
	a, err := os.ReadFile(fresh)
	if err != nil {
		return err
	}
	if b, err := os.ReadFile(path); err == nil && bytes.Equal(a, b) {
		return os.Remove(fresh)
	}
	return os.Rename(fresh, path)
}

// check compares every setting with the result. What was lost is a
// configuration error that gives the reason for each.
func check(got configuration, j job, src string) (notes []string, err error) {
	var lost []setting
	for _, s := range j.fragments.merged {
		if !sameValue(s.value, got.value(s.symbol)) {
			lost = append(lost, s)
		}
	}
	if lost == nil {
		return nil, nil
	}
	defs, err := readKconfig(src, j.arch.name)
	if err != nil {
		return nil, slotFailed(src, err)
	}
	var said []string
	lostPahole := false
	for _, s := range lost {
		if s.optional && !defs.known(s.symbol) {
			notes = append(notes, fmt.Sprintf("CONFIG_%s, optional in %s, is unknown to this tree", s.symbol, s.from))
			continue
		}
		reasons := defs.reasons(s, got)
		for _, r := range reasons {
			lostPahole = lostPahole || strings.Contains(r, "PAHOLE_VERSION=")
		}
		said = append(said, fmt.Sprintf("CONFIG_%s=%s (%s) became %s: %s",
			s.symbol, s.value, s.from, got.value(s.symbol), strings.Join(reasons, "; ")))
	}
	if said == nil {
		return notes, nil
	}
	next := "ask for what is missing too, or drop the setting; \"# optional\" after it allows a tree not to know it"
	if lostPahole {
		next = "bin/setup installs pahole; a newer one is needed if it is there already"
	}
	return nil, &fault.Error{
		Blame: fault.Configuration, Doing: "checking the resolved kernel configuration", Subject: j.commit.Describe,
		Err: fmt.Errorf("%d requested symbol(s) lost", len(said)), Said: strings.Join(said, "\n"), Next: next,
	}
}
