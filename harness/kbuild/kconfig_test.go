// SPDX-License-Identifier: MIT

package kbuild

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
	"patchbay/harness/tree"
)

// fragmentFiles writes fragments as a.config, b.config and so on.
func fragmentFiles(t *testing.T, contents ...string) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i, c := range contents {
		path := filepath.Join(dir, string(rune('a'+i))+".config")
		if err := os.WriteFile(path, []byte(c), 0o666); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestFragments(t *testing.T) {
	f, err := readFragments(fragmentFiles(
		t,
		"# a comment\n\nCONFIG_NET=y\n# CONFIG_MODULES is not set\nCONFIG_HZ=100 # why\n  CONFIG_NAME=\"a # \\\" b\"  # optional: only here\n",
		"CONFIG_NET=y\r\nCONFIG_HZ=1000\n#CONFIG_SMP is not set # optional, on some\nCONFIG_NEW=n\nCONFIG_LAST=m # not optional",
	))
	if err != nil {
		t.Fatal(err)
	}
	const want = `CONFIG_NET=y
# CONFIG_MODULES is not set
CONFIG_HZ=1000
CONFIG_NAME="a # \" b"
# CONFIG_SMP is not set
# CONFIG_NEW is not set
CONFIG_LAST=m
`
	if diff := cmp.Diff(want, string(f.text())); diff != "" {
		t.Error(diff)
	}
	optional := ""
	for _, s := range f.merged {
		if s.optional {
			optional += s.symbol + " (" + s.from + ") "
		}
	}
	if want := "NAME (a.config:6) SMP (b.config:3) "; optional != want {
		t.Errorf("optional: %q, want %q", optional, want)
	}
	// What contradicts is said, what is merely repeated is not.
	if diff := cmp.Diff([]string{"b.config:2 sets CONFIG_HZ=1000 and overrides a.config:5, which sets it to 100"}, f.notes); diff != "" {
		t.Error(diff)
	}
}

func TestFragmentsRefused(t *testing.T) {
	for line, say := range map[string]string{
		"CONFIG_NET":                "no setting",
		"NET=y":                     "no setting",
		"CONFIG_NET = y":            "no setting",
		"CONFIG_NET=":               "no setting",
		"CONFIG_NET=y y":            "no setting",
		`CONFIG_NAME="open`:         "no setting",
		"CONFIG_NET=y // c":         "no setting",
		"# CONFIG_NET=y":            "commented out",
		"#CONFIG_NET = y":           "commented out",
		"# CONFIG_NET is not set,":  "", // a comment, as kconfig takes it
		"# is CONFIG_NET not set":   "",
		"# CONFIG_ prefixes matter": "",
	} {
		paths := fragmentFiles(t, "CONFIG_OK=y\n"+line+"\n", "also wrong\n")
		_, err := readFragments(append(paths, filepath.Join(t.TempDir(), "none.config")))
		// Everything that is wrong is said at once.
		wantFault(t, err, fault.Configuration, paths[1]+":1", "none.config", "no such file")
		if there := strings.Contains(err.Error(), paths[0]+":2"); there != (say != "") || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", line, err)
		}
	}
	_, err := readFragments(fragmentFiles(t, "# nothing\n"))
	wantFault(t, err, fault.Configuration, "they set nothing")
}

// kconfigTree writes a tree's Kconfig files.
func kconfigTree(t *testing.T, files map[string]string) string {
	t.Helper()
	src := t.TempDir()
	for name, text := range files {
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return src
}

// lostTree has a symbol for every way to lose one.
var lostTree = map[string]string{
	"Kconfig": `mainmenu "Linux"
config NET
	bool "Networking"
	help
	  Text that says
	  depends on NONSENSE
	  config NOT_ONE

config NEEDS_ONE
	bool "a" if EXPERT
	depends on NET && !MODULES	# a comment

config NEEDS_EITHER
	bool
	prompt "b"
	depends on (INET || \
		IPV6) && HZ >= 250

menu "Menu"
	depends on MENU_ON
config IN_MENU
	bool "c"
endmenu

if NET
if BPF = y
config IN_IFS
	bool "d"
endif
config IN_IF
	bool "e"
endif

choice
	prompt "One of"
config FIRST
	bool "First"
config SECOND
	bool "Second"
endchoice

config OUTSIDE
	bool "after all blocks"

config HIDDEN
	bool

config CHOSEN
	bool "f"
config CHOOSER
	bool "g"
	select CHOSEN if NET

config EXPERT_ONLY
	bool "h" if EXPERT
	default y

config COND_DEP
	bool "i"
	depends on RUST if LTO

config RANGED
	int "j"
	range 1 10

config ASKS
	bool "k"
	depends on $(cc-option,-fx)
`,
	"net/Kconfig.more":      "config TWICE\n\tbool \"l\"\n\tdepends on MENU_ON\n",
	"net/Kconfig":           "config TWICE\n\tbool \"l\"\n\tdepends on IPV6\n",
	"arch/x86/Kconfig":      "config OURS\n\tbool \"m\"\n",
	"arch/arm64/Kconfig":    "config THEIRS\n\tbool \"n\"\n",
	"Documentation/Kconfig": "config DOCUMENTED\n\tbool \"o\"\n",
	"lib/test.c":            "config IN_C\n\tbool \"p\"\n",
}

// Every symbol that is lost is named, with where it was asked for, what it
// became and why.
func TestLostSymbols(t *testing.T) {
	src := kconfigTree(t, lostTree)
	got := parseConfiguration([]byte(`# CONFIG_MODULES is not set
CONFIG_NET=y
CONFIG_HZ=100
CONFIG_INET=y
CONFIG_CHOSEN=y
CONFIG_CHOOSER=y
CONFIG_FIRST=y
CONFIG_RANGED=10
CONFIG_EXPERT_ONLY=y
CONFIG_LTO=y
CONFIG_TEXT="a"
`))
	for line, say := range map[string]string{
		"CONFIG_NEEDS_ONE=y":              "became n: can be set only if EXPERT (EXPERT=n)",
		"CONFIG_NEEDS_EITHER=y":           "became n: depends on (INET || IPV6) && HZ >= 250 (HZ=100, INET=y, IPV6=n)",
		"CONFIG_IN_MENU=y":                "became n: depends on MENU_ON (MENU_ON=n)",
		"CONFIG_IN_IFS=y":                 "became n: depends on BPF = y (BPF=n)",
		"CONFIG_IN_IF=y":                  "became n: its dependencies seem to be met",
		"CONFIG_SECOND=y":                 "became n: of the same choice, FIRST is set",
		"CONFIG_OUTSIDE=y":                "became n: its dependencies seem to be met",
		"CONFIG_HIDDEN=y":                 "became n: it cannot be set, only be selected",
		"# CONFIG_CHOSEN is not set":      "CONFIG_CHOSEN=n (a.config:1) became y: selected by CHOOSER",
		"# CONFIG_EXPERT_ONLY is not set": "became y: can be set only if EXPERT (EXPERT=n)",
		"CONFIG_COND_DEP=y":               "became n: depends on (RUST) || !(LTO) (LTO=y, RUST=n)",
		"CONFIG_RANGED=50":                "became 10: its dependencies seem to be met; see the log",
		"CONFIG_TWICE=y":                  "became n: depends on IPV6 (IPV6=n); depends on MENU_ON (MENU_ON=n)",
		"CONFIG_OURS=y":                   "became n: its dependencies seem to be met",
		"CONFIG_THEIRS=y":                 "became n: this tree has no such symbol",
		"CONFIG_DOCUMENTED=y":             "became n: this tree has no such symbol",
		"CONFIG_IN_C=y":                   "became n: this tree has no such symbol",
		"CONFIG_NOT_ONE=y":                "became n: this tree has no such symbol",
		"CONFIG_ASKS=y":                   "became n: depends on $(cc-option,-fx)",
		"CONFIG_TEXT=\"b\"":               `became "a": this tree has no such symbol`,
		"CONFIG_MISSING=y":                "CONFIG_MISSING=y (a.config:1) became n: this tree has no such symbol",
		// An optional symbol may be unknown, but not lost for another reason.
		"CONFIG_IN_MENU=y # optional": "became n: depends on MENU_ON",
	} {
		fr, err := readFragments(fragmentFiles(t, line+"\nCONFIG_NET=y\n"))
		if err != nil {
			t.Fatal(err)
		}
		j := job{fragments: fr, arch: arch{name: "x86"}, commit: tree.Commit{Describe: "a kernel"}}
		_, err = check(got, j, src)
		if err == nil {
			t.Errorf("%s: nothing was lost", line)
			continue
		}
		wantFault(t, err, fault.Configuration, "a kernel", "1 requested symbol(s) lost", "CONFIG_", say)
	}
}

func TestNothingLost(t *testing.T) {
	src := kconfigTree(t, lostTree)
	fr, err := readFragments(fragmentFiles(t, "CONFIG_NET=y\nCONFIG_HZ=0x64\n# CONFIG_SMP is not set\nCONFIG_MISSING=y # optional\n# CONFIG_GONE is not set\n"))
	if err != nil {
		t.Fatal(err)
	}
	j := job{fragments: fr, arch: arch{name: "x86"}}
	notes, err := check(parseConfiguration([]byte("CONFIG_NET=y\nCONFIG_HZ=100\n")), j, src)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"CONFIG_MISSING, optional in a.config:4, is unknown to this tree"}, notes); diff != "" {
		t.Error(diff)
	}
}

func TestEvaluate(t *testing.T) {
	got := configuration{"A": "y", "M": "m", "HZ": "250", "S": `"text"`, "HEX": "0x10"}
	for expr, want := range map[string]truth{
		"A": yes, "M": yes, "N": no, "!N": yes, "!A": no, "!!A": yes,
		"A && M": yes, "A && N": no, "N || A": yes, "N || N": no,
		"A || N && N": yes, "(A || N) && N": no, "!(N || N)": yes, "!N && A": yes,
		"A = y": yes, "A=n": no, "A != y": no, "M = m": yes, "N = n": yes, "N!=n": no,
		"HZ = 250": yes, "HZ >= 250": yes, "HZ > 250": no, "HZ < 1000": yes, "HZ <= 249": no, "HEX = 16": yes,
		`S = "text"`: yes, `S = "other"`: no, `S != 'text'`: no,
		"y": yes, "n": no, "m": yes,
		"$(cc-option,-fx)": unknown, "A && $(x)": unknown, "N && $(x)": no, "A || $(x)": yes, "!$(x)": unknown, "$(x) = y": unknown,
		"N >= 3": unknown,
		"":       unknown, "A &&": unknown, "(A": unknown, "A B": unknown, "&& A": unknown, "A = ": unknown, "%": unknown,
	} {
		if v := evaluate(expr, got); v != want {
			t.Errorf("%q is %d, want %d", expr, v, want)
		}
	}
}

// What kconfig did to a request is found with the miniature kernel too, and a
// build is not even begun.
func TestLostSymbolStopsTheBuild(t *testing.T) {
	f := newFixture(t)
	f.fails(
		fault.Configuration,
		[]string{"2 requested symbol(s) lost", "CONFIG_SOCK_MSG=y (mini.config:2) became n: depends on BPF (BPF=n)", "CONFIG_ARM64_ONLY=y (mini.config:3) became n: this tree has no such symbol"},
		nil, f.fragment("mini", "CONFIG_NET=y\nCONFIG_SOCK_MSG=y\nCONFIG_ARM64_ONLY=y\n"),
	)
	objects, _ := filepath.Glob(filepath.Join(escapeGlob(f.slot()), "out", "*", "*.o"))
	if len(objects) > 0 {
		t.Errorf("built all the same: %q", objects)
	}
	f.fails(
		fault.Configuration, []string{"CONFIG_STUBBORN=n (mini.config:2) became y: can be set only if EXPERT (EXPERT=n)"},
		nil, f.fragment("mini", "CONFIG_NET=y\n# CONFIG_STUBBORN is not set\n"),
	)
}

// An overridden setting and an optional symbol are told of with the artifact.
func TestNotesOfTheConfiguration(t *testing.T) {
	f := newFixture(t)
	a := f.build(nil, f.fragment("one", fragment), f.fragment("two", "CONFIG_HZ=1000\nCONFIG_NOWHERE=y # optional\n"))
	want := []string{
		"two.config:1 sets CONFIG_HZ=1000 and overrides one.config:5, which sets it to 100",
		"CONFIG_NOWHERE, optional in two.config:2, is unknown to this tree",
	}
	if diff := cmp.Diff(want, a.Notes); diff != "" {
		t.Error(diff)
	}
	config, err := os.ReadFile(a.Config)
	if err != nil || !bytes.Contains(config, []byte("CONFIG_HZ=1000\n")) {
		t.Errorf("%v:\n%s", err, config)
	}
}

func TestCountSet(t *testing.T) {
	if n := countSet([]byte("CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=\"y\"\nCONFIG_E=y\n")); n != 2 {
		t.Errorf("%d symbols at y, want 2", n)
	}
}
