// SPDX-License-Identifier: MIT

package tree

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

func TestLoadBases(t *testing.T) {
	got, err := LoadBases("../../kernel/bases.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"v6.12", "v7.3"}, got.Names()); diff != "" {
		t.Error(diff)
	}
	b, err := got.Find("v7.3")
	if err != nil {
		t.Fatal(err)
	}
	if b.Name != "v7.3" || len(b.Ways) != 2 || b.Ways[0].Package != "linux-source-7.3" || b.Ways[1].Tarball == nil {
		t.Errorf("v7.3 is %+v", b)
	}
	if _, err := got.Find("v6.21"); err == nil {
		t.Error("v6.21 was found")
	} else {
		faulty(t, err, fault.Configuration, "v6.12")
	}
}

func TestLoadBasesRefuses(t *testing.T) {
	way := "    ways: [{package: linux-source-6.12}]\n"
	for name, c := range map[string]struct{ text, say string }{
		"no base":       {"bases: []\n", "no base"},
		"no name":       {"bases:\n  - ways: [{package: linux-source-6.12}]\n", "line 2: a base needs a name"},
		"bad name":      {"bases:\n  - name: ../v6\n" + way, `line 2: "../v6" cannot be`},
		"option":        {"bases:\n  - name: -v\n" + way, `"-v" cannot be`},
		"no ways":       {"bases:\n  - name: v6\n", "no ways"},
		"twice":         {"bases:\n  - name: v6\n" + way + "  - name: v6\n" + way, "line 4: base v6 is there twice"},
		"both":          {"bases:\n  - name: v6\n    ways: [{package: linux-source-6, tarball: {url: https://example.org/a}}]\n", "either a package or a tarball"},
		"neither":       {"bases:\n  - name: v6\n    ways: [{}]\n", "either a package or a tarball"},
		"other package": {"bases:\n  - name: v6\n    ways: [{package: bash}]\n", `"bash" is no linux-source package`},
		"http":          {"bases:\n  - name: v6\n    ways: [{tarball: {url: http://example.org/a}}]\n", "no https address"},
		"short sum":     {"bases:\n  - name: v6\n    ways: [{tarball: {url: https://example.org/a, sha256: abc}}]\n", `sha256 "abc"`},
		"bad suite":     {"bases:\n  - name: v6\n    ways: [{package: linux-source-6, suites: ['a b']}]\n", `"a b" is no suite`},
		"lost suites":   {"bases:\n  - name: v6\n    ways: [{tarball: {url: https://example.org/a}, suites: [sid]}]\n", "suites belong to a package"},
		"unknown key":   {"bases:\n  - name: v6\n    wais: []\n", "wais"},
		"no yaml":       {"bases: [", "sequence end token"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"bases.yaml": c.text})
			got, err := LoadBases(filepath.Join(dir, "bases.yaml"))
			if err == nil {
				t.Fatalf("taken for %+v", got)
			}
			faulty(t, err, fault.Configuration, c.say, filepath.Join(dir, "bases.yaml"))
		})
	}
	_, err := LoadBases(filepath.Join(t.TempDir(), "none.yaml"))
	faulty(t, err, fault.Configuration, "none.yaml")
}
