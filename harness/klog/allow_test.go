// SPDX-License-Identifier: MIT

package klog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

const goodList = `# known ones
allow:
  - regex: 'WARNING at net/core/sock\.c in sk_stream_kill_queues'
    reason: known upstream
    link: https://example.org/1
    until: "6.15"
  - regex: 'kmemleak: \d+ new'
    reason: the scan is too eager
    link: https://example.org/2
    expires: 2027-01-31
  - regex: 'never seen'
    reason: gone
    link: https://example.org/3
    until: v7.0
    expires: 2027-01-31
`

func writeList(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mit Leerzeichen ü.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAllow(t *testing.T) {
	list, err := LoadAllowList(writeList(t, goodList))
	if err != nil {
		t.Fatal(err)
	}
	day := func(s string) time.Time {
		d, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	splats := func() []Splat {
		return []Splat{
			{Title: "WARNING at net/core/sock.c in sk_stream_kill_queues", Line: "WARNING: CPU: 1 PID: 2 at ..."},
			{Title: "kmemleak: new suspected memory leaks", Line: "kmemleak: 2 new suspected memory leaks"},
			{Title: "kmemleak: new suspected memory leaks", Line: "kmemleak: 2 new suspected memory leaks"},
			{Title: "BUG: KASAN: a in b"},
			{Title: "kmemleak: and dead", Line: "kmemleak: 2 new ones, and dead", Fatal: true},
		}
	}
	for name, c := range map[string]struct {
		kernel, now string
		allowed     []bool
		matches     []int
		expired     []bool
	}{
		"all hold":                {"6.12.117-patchbay", "2027-01-31T23:59:59Z", []bool{true, true, true, false, false}, []int{1, 2, 0}, []bool{false, false, false}},
		"the day after":           {"6.12.117", "2027-02-01T00:00:00Z", []bool{true, false, false, false, false}, []int{1, 0, 0}, []bool{false, true, true}},
		"the version is there":    {"6.15.0-rc2", "2026-12-01T00:00:00Z", []bool{false, true, true, false, false}, []int{0, 2, 0}, []bool{true, false, false}},
		"a later one":             {"v7.3", "2026-12-01T00:00:00Z", []bool{false, true, true, false, false}, []int{0, 2, 0}, []bool{true, false, true}},
		"nobody knows the kernel": {"", "2026-12-01T00:00:00Z", []bool{false, true, true, false, false}, []int{0, 2, 0}, []bool{true, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := splats()
			var matches []int
			var expired, allowed []bool
			for _, u := range Allow(list, s, c.kernel, day(c.now)) {
				matches, expired = append(matches, u.Matches), append(expired, u.Expired)
			}
			for _, one := range s {
				allowed = append(allowed, one.Allowed != "")
			}
			for _, diff := range []string{cmp.Diff(c.allowed, allowed), cmp.Diff(c.matches, matches), cmp.Diff(c.expired, expired)} {
				if diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
	s := splats()
	Allow(list, s, "6.12", day("2026-12-01T00:00:00Z"))
	if want := "known upstream (https://example.org/1)"; s[0].Allowed != want {
		t.Errorf("got %q, want %q", s[0].Allowed, want)
	}
	if uses := Allow(nil, s, "6.12", time.Now()); uses != nil {
		t.Errorf("without a list: %v", uses)
	}
}

func TestBrokenAllowListsAreErrors(t *testing.T) {
	entry := func(drop, add string) string {
		var b strings.Builder
		b.WriteString("allow:\n- {")
		for _, f := range []string{"regex: abc", "reason: because", "link: 'https://example.org/1'", "until: '6.15'"} {
			if !strings.HasPrefix(f, drop+":") {
				b.WriteString(f + ", ")
			}
		}
		return b.String() + add + "}\n"
	}
	if _, err := LoadAllowList(writeList(t, entry("", ""))); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, text := range map[string]string{
		"empty":              "",
		"a comment only":     "# nothing\n",
		"no entries":         "allow: []\n",
		"null":               "allow:\n",
		"a list":             "- regex: abc\n",
		"no YAML":            "allow: [\n",
		"binary":             "\x00\x01\x02",
		"no regex":           entry("regex", ""),
		"no reason":          entry("reason", ""),
		"blank reason":       entry("reason", "reason: ' '"),
		"no link":            entry("link", ""),
		"no end":             entry("until", ""),
		"unknown field":      entry("", "untill: '6.15'"),
		"twice the field":    entry("", "reason: again"),
		"broken regex":       entry("regex", "regex: '('"),
		"regex for anything": entry("regex", "regex: '.*'"),
		"link to nowhere":    entry("link", "link: 'bug 17'"),
		"no version":         entry("until", "until: soon"),
		"no date":            entry("until", "expires: 31.1.2027"),
		"no such date":       entry("until", "expires: 2027-02-30"),
		"two documents":      entry("", "") + "---\n" + entry("", ""),
		"too large":          entry("", "") + strings.Repeat("# x\n", maxAllowList/4),
	} {
		list, err := LoadAllowList(writeList(t, text))
		var f *fault.Error
		if list != nil || !errors.As(err, &f) || f.Blame != fault.Configuration || f.Subject == "" || f.Next == "" {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	if _, err := LoadAllowList(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := LoadAllowList(t.TempDir()); err == nil {
		t.Error("a directory: no error")
	}
	// Every fault is named at once.
	_, err := LoadAllowList(writeList(t, "allow:\n- {regex: abc}\n- {regex: '('}\n- {regex: def, reason: x}\n"))
	for _, part := range []string{"entry 1", "entry 2", "entry 3"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in %v", part, err)
		}
	}
}
