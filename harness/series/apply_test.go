// SPDX-License-Identifier: MIT

package series

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/harness/internal/fault"
	"patchbay/harness/tree"
)

// fixture is a store with a user's git tree: a kernel of four files.
type fixture struct {
	t     *testing.T
	store *tree.Store
	dir   string
	base  tree.Commit
}

// lines are the numbers from 1 to 20, one a line, with some of them replaced.
func lines(replaced map[int]string) string {
	var b strings.Builder
	for i := 1; i <= 20; i++ {
		if r, ok := replaced[i]; ok {
			b.WriteString(r + "\n")
		} else {
			b.WriteString("line " + string(rune('a'+i)) + "\n")
		}
	}
	return b.String()
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	store, err := tree.Open(context.Background(), filepath.Join(t.TempDir(), "a cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, store: store, dir: filepath.Join(t.TempDir(), "a tree")}
	write(t, f.dir+"/Makefile", "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 3\n")
	write(t, f.dir+"/Kconfig", "\n")
	write(t, f.dir+"/net/core/skmsg.c", lines(nil))
	write(t, f.dir+"/net/core/sock.c", lines(nil))
	f.git("init", "-q")
	f.git("add", "-A")
	f.git("commit", "-qm", "base")
	f.base = f.resolve()
	return f
}

// git runs git in the user's tree, as the user would.
func (f *fixture) git(args ...string) string {
	f.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", f.dir, "-c", "user.name=Ada Example", "-c", "user.email=ada@example.org"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_DATE=2026-11-03T10:20:30+0200")
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (f *fixture) resolve() tree.Commit {
	f.t.Helper()
	c, err := f.store.Resolve(context.Background(), tree.Source{Dir: f.dir})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// made commits a state of skmsg.c on a branch and returns it as format-patch
// gives it, so that what is read is what git writes.
func (f *fixture) made(message, content string) Series {
	f.t.Helper()
	write(f.t, f.dir+"/net/core/skmsg.c", content)
	f.git("commit", "-qam", message)
	s, err := Read(context.Background(), Stdin, strings.NewReader(f.git("format-patch", "--stdout", "-1")))
	if err != nil {
		f.t.Fatal(err)
	}
	s.Name = "made"
	return s
}

// show reads a file of a commit in the store.
func (f *fixture) show(c tree.Commit, what ...string) string {
	f.t.Helper()
	out, err := f.store.Git(context.Background(), tree.Git{Objects: c.Objects}, what...)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(out)
}

func TestApply(t *testing.T) {
	f := newFixture(t)
	one := f.made("net: one\n\nBecause.\n\nSigned-off-by: Ada", lines(map[int]string{3: "ONE"}))
	two := f.made("net: two", lines(map[int]string{3: "ONE", 17: "TWO"}))
	f.git("checkout", "-q", f.base.ID)

	got, steps, err := Apply(context.Background(), f.store, f.base, one, two)
	if err != nil {
		t.Fatal(err)
	}
	if text := f.show(got, "show", got.ID+":net/core/skmsg.c"); text != lines(map[int]string{3: "ONE", 17: "TWO"}) {
		t.Errorf("skmsg.c is\n%s", text)
	}
	const format = "--format=%an <%ae>|%aI|%s|%b"
	if said := f.show(got, "log", "-2", format, got.ID); said !=
		"Ada Example <ada@example.org>|2026-11-03T10:20:30+02:00|net: two|\n"+
			"Ada Example <ada@example.org>|2026-11-03T10:20:30+02:00|net: one|Because.\n\nSigned-off-by: Ada\n\n" {
		t.Errorf("the commits are\n%s", said)
	}
	if len(steps) != 2 || steps[0].ThreeWay || steps[1].Commit.ID != got.ID || steps[0].Patch.Subject != "net: one" || got.Version != "6.12.3" {
		t.Errorf("the steps are %+v, the version %s", steps, got.Version)
	}
	if !strings.HasSuffix(got.Describe, "+ made + made") {
		t.Errorf("it is described as %q", got.Describe)
	}

	// The same again is the same, from memory and from nothing.
	again, steps2, err := Apply(context.Background(), f.store, f.base, one, two)
	if err != nil || again.ID != got.ID || len(steps2) != 2 || steps2[0].Commit.ID != steps[0].Commit.ID {
		t.Errorf("again: %v, %v", again, err)
	}
	other := newFixture(t)
	f.git("checkout", "-q", "-B", "main", f.base.ID)
	if other.base.ID == f.base.ID {
		if fresh, _, err := Apply(context.Background(), other.store, other.base, one, two); err != nil || fresh.ID != got.ID {
			t.Errorf("in another store: %v, %v", fresh, err)
		}
	}
}

func TestApplyNothing(t *testing.T) {
	f := newFixture(t)
	if got, steps, err := Apply(context.Background(), f.store, f.base); err != nil || got.ID != f.base.ID || steps != nil {
		t.Errorf("got %v, %v, %v", got, steps, err)
	}
}

// The blobs that the patch was made for are in the user's tree, so a change
// beside it is no obstacle.
func TestApplyThreeWay(t *testing.T) {
	f := newFixture(t)
	s := f.made("net: five", lines(map[int]string{5: "FIVE"}))
	f.git("checkout", "-q", f.base.ID)
	write(t, f.dir+"/net/core/skmsg.c", lines(map[int]string{7: "OTHER"}))
	f.git("commit", "-qam", "other")

	got, steps, err := Apply(context.Background(), f.store, f.resolve(), s)
	if err != nil {
		t.Fatal(err)
	}
	if text := f.show(got, "show", got.ID+":net/core/skmsg.c"); text != lines(map[int]string{5: "FIVE", 7: "OTHER"}) {
		t.Errorf("skmsg.c is\n%s", text)
	}
	if !steps[0].ThreeWay {
		t.Error("that it was merged is not said")
	}
	// What was merged is not taken from memory, so that it is said each time.
	if _, steps, err = Apply(context.Background(), f.store, f.resolve(), s); err != nil || !steps[0].ThreeWay {
		t.Errorf("the second time: %+v, %v", steps, err)
	}
}

func TestApplyUncommitted(t *testing.T) {
	f := newFixture(t)
	s := f.made("net: five", lines(map[int]string{5: "FIVE"}))
	f.git("checkout", "-q", f.base.ID)
	write(t, f.dir+"/net/core/skmsg.c", lines(map[int]string{15: "MINE"}))
	got, _, err := Apply(context.Background(), f.store, f.resolve(), s)
	if err != nil {
		t.Fatal(err)
	}
	if text := f.show(got, "show", got.ID+":net/core/skmsg.c"); text != lines(map[int]string{5: "FIVE", 15: "MINE"}) {
		t.Errorf("skmsg.c is\n%s", text)
	}
}

func TestApplyRefused(t *testing.T) {
	f := newFixture(t)
	fits := f.made("net: one", lines(map[int]string{3: "ONE"}))
	conflicts := f.made("net: both ends", lines(map[int]string{2: "LOW", 3: "ONE", 18: "HIGH"}))
	f.git("checkout", "-q", f.base.ID)
	write(t, f.dir+"/net/core/skmsg.c", lines(map[int]string{18: "SOMETHING ELSE"}))
	f.git("commit", "-qam", "in its way")
	base := f.resolve()
	refs := f.show(base, "for-each-ref")

	series := fits
	series.Name = "mine"
	series.Patches = append(series.Patches, conflicts.Patches...)
	missing := fits
	missing.Patches = []Patch{{
		File: "x.diff", Subject: "no such file", Author: "a <a@b>",
		Diff: []byte("--- a/net/none.c\n+++ b/net/none.c\n@@ -1 +1 @@\n-a\n+b\n"),
	}}
	garbled := fits
	garbled.Patches = []Patch{{
		File: "x.diff", Subject: "garbled", Author: "a <a@b>",
		Diff: []byte("diff --git a/Kconfig b/Kconfig\n--- a/Kconfig\n+++ b/Kconfig\n@@ -1,9 +1,2 @@\n \n+a\n"),
	}}
	for name, tc := range map[string]struct {
		series []Series
		says   []string
	}{
		"a hunk":          {[]Series{series}, []string{"applying the series mine", `patch 2 of 2, "net: both ends"`, "net/core/skmsg.c, hunk 2 of 2 (@@ -15,6 +15,6 @@", "in its way"}},
		"no such file":    {[]Series{missing}, []string{"net/none.c", "x.diff"}},
		"garbled":         {[]Series{garbled}, []string{"corrupt patch", "x.diff"}},
		"a second series": {[]Series{fits, missing}, []string{"net/none.c", "+ made"}},
		"applied twice":   {[]Series{fits, fits}, []string{"net: one"}},
	} {
		_, _, err := Apply(context.Background(), f.store, base, tc.series...)
		var e *fault.Error
		if !errors.As(err, &e) || e.Blame != fault.Kernel || e.Next == "" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, says := range tc.says {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: the error does not say %q:\n%v", name, says, err)
			}
		}
	}
	if now := f.show(base, "for-each-ref"); now != refs {
		t.Errorf("refs were left behind:\n%s", now)
	}
}

func TestApplyEndsWithItsContext(t *testing.T) {
	f := newFixture(t)
	s := f.made("net: one", lines(map[int]string{3: "ONE"}))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := Apply(ctx, f.store, f.base, s); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
