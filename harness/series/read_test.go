// SPDX-License-Identifier: MIT

package series

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/harness/internal/fault"
)

// diffOf makes a diff that adds one file.
func diffOf(file string) string {
	return fmt.Sprintf("diff --git a/%[1]s b/%[1]s\nnew file mode 100644\n--- /dev/null\n+++ b/%[1]s\n@@ -0,0 +1 @@\n+%[1]s\n", file)
}

// letter makes a message as a mailbox holds it. An empty file makes it one
// without a diff.
func letter(subject, file string) string {
	m := "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n" +
		"From: Ada Example <ada@example.org>\nDate: Tue, 3 Nov 2026 10:20:30 +0200\nSubject: " + subject + "\n\nWhy it is so.\n"
	if file != "" {
		m += "---\n " + file + " | 1 +\n\n" + diffOf(file) + "-- \n2.39\n"
	}
	return m + "\n"
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func subjects(s Series) []string {
	all := []string{}
	for _, p := range s.Patches {
		all = append(all, p.Subject)
	}
	return all
}

func TestReadMbox(t *testing.T) {
	for name, tc := range map[string]struct {
		mails   []string
		want    []string
		title   string
		version int
		note    string
	}{
		"one patch": {
			mails: []string{letter("[PATCH] net: one", "one")},
			want:  []string{"net: one"},
		},
		"with cover letter": {
			mails: []string{letter("[PATCH bpf-next 0/2] bpf: both", ""), letter("[PATCH bpf-next 1/2] one", "one"), letter("[PATCH bpf-next 2/2] two", "two")},
			want:  []string{"one", "two"}, title: "bpf: both",
		},
		"out of order": {
			mails: []string{letter("[PATCH 3/3] c", "c"), letter("[PATCH 1/3] a", "a"), letter("[PATCH 0/3] all", ""), letter("[PATCH 2/3] b", "b")},
			want:  []string{"a", "b", "c"}, title: "all",
		},
		"more than nine, as text they would sort wrongly": {
			mails: func() (all []string) {
				for i := 11; i > 0; i-- {
					all = append(all, letter(fmt.Sprintf("[PATCH %d/11] p%d", i, i), fmt.Sprintf("f%d", i)))
				}
				return all
			}(),
			want: []string{"p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11"},
		},
		"replies": {
			mails: []string{letter("[PATCH 1/1] one", "one"), letter("Re: [PATCH 1/1] one", ""), letter("Re: [PATCH 1/1] one", "other"), letter("RE: AW: [PATCH v9 1/1] one", "third")},
			want:  []string{"one"}, note: "2 replies",
		},
		"v2 beside v1": {
			mails: []string{letter("[PATCH v2 2/2] b", "b2"), letter("[PATCH 1/2] a", "a"), letter("[PATCH v2 1/2] a", "a2"), letter("[PATCH 2/2] b", "b")},
			want:  []string{"a", "b"}, version: 2, note: "v1 (2 patches)",
		},
		"version glued to the tag": {
			mails: []string{letter("[PATCHv3 1/1] a", "a"), letter("[RFC PATCH v2 1/1] a", "b")},
			want:  []string{"a"}, version: 3,
		},
		"the same mail twice": {
			mails: []string{letter("[PATCH 1/1] one", "one"), letter("[PATCH 1/1] one", "one")},
			want:  []string{"one"},
		},
		"no part numbers": {
			mails: []string{letter("[PATCH] z", "z"), letter("[PATCH] a", "a")},
			want:  []string{"z", "a"},
		},
		"brackets that belong to the subject's text": {
			mails: []string{letter("[PATCH net,v4] fix [x] in y", "y")},
			want:  []string{"fix [x] in y"}, version: 4,
		},
		"cover letter not filled in": {
			mails: []string{letter("[PATCH 0/1] *** SUBJECT HERE ***", ""), letter("[PATCH 1/1] one", "one")},
			want:  []string{"one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, filepath.Join(t.TempDir(), "a b.mbox"), strings.Join(tc.mails, ""))
			s, err := Read(context.Background(), file, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(subjects(s), tc.want) || s.Title != tc.title || s.Version != max(1, tc.version) {
				t.Errorf("got %q, title %q, v%d", subjects(s), s.Title, s.Version)
			}
			if tc.note != "" && !strings.Contains(strings.Join(s.Notes, "\n"), tc.note) {
				t.Errorf("the notes %q do not say %q", s.Notes, tc.note)
			}
			p := s.Patches[0]
			if p.Author != "Ada Example <ada@example.org>" || p.Body != "Why it is so." || !strings.Contains(p.File, "a b.mbox") {
				t.Errorf("author %q, body %q, file %q", p.Author, p.Body, p.File)
			}
			if want := time.Date(2026, 11, 3, 8, 20, 30, 0, time.UTC); !p.Date.Equal(want) || p.Date.Format("-0700") != "+0200" {
				t.Errorf("date %v", p.Date)
			}
		})
	}
}

// v2's diffs are v2's, not v1's.
func TestNewestVersionsDiffs(t *testing.T) {
	s, err := Read(context.Background(), Stdin, strings.NewReader(letter("[PATCH v2 1/1] a", "new")+letter("[PATCH 1/1] a", "old")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := string(s.Patches[0].Diff); !strings.Contains(diff, "b/new") || strings.Contains(diff, "old") {
		t.Errorf("the diff is\n%s", diff)
	}
}

func TestReadEncodedMail(t *testing.T) {
	const text = `From: =?utf-8?q?J=C3=B6rg_Example?= <joerg@example.org>
Date: Tue, 3 Nov 2026 10:20:30 +0000
Subject: [PATCH 1/1] =?utf-8?q?net=3A_a_l=C3=B6ng?=
 =?utf-8?q?_subject?=
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: quoted-printable

Gr=C3=BC=C3=9Fe, folded=
 here.

Signed-off-by: Ada
---
diff --git a/x b/x
new file mode 100644
--- /dev/null
+++ b/x
@@ -0,0 +1,2 @@
+a =3D 1;
+/* =C3=A4 */
`
	s, err := Read(context.Background(), Stdin, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	p := s.Patches[0]
	if p.Author != "Jörg Example <joerg@example.org>" || p.Subject != "net: a löng subject" ||
		p.Body != "Grüße, folded here.\n\nSigned-off-by: Ada" || !strings.Contains(string(p.Diff), "+a = 1;\n+/* ä */\n") {
		t.Errorf("got %q by %q\n%s\n%s", p.Subject, p.Author, p.Body, p.Diff)
	}
	if s.Name != Stdin || !strings.Contains(p.File, "standard input") {
		t.Errorf("name %q, file %q", s.Name, p.File)
	}
}

func TestReadPlainDiff(t *testing.T) {
	for name, text := range map[string]string{
		"git":         diffOf("x"),
		"with prose":  "this makes x:\n\n" + diffOf("x"),
		"unified":     "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
		"carriage":    strings.ReplaceAll(diffOf("x"), "\n", "\r\n"),
		"blank start": "\n\n" + diffOf("x"),
		"subversion":  "Index: x\n===\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
	} {
		s, err := Read(context.Background(), write(t, filepath.Join(t.TempDir(), "x.diff"), text), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(s.Patches) != 1 || s.Patches[0].Subject != "changes from x.diff" || strings.Contains(string(s.Patches[0].Diff), "\r") {
			t.Errorf("%s: got %q\n%q", name, subjects(s), s.Patches)
		}
	}
}

func TestReadFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/0002-b.patch", letter("[PATCH v2 2/2] b", "b"))
	write(t, dir+"/0001-a.patch", letter("[PATCH v2 1/2] a", "a"))
	write(t, dir+"/0000-cover-letter.patch", letter("[PATCH v2 0/2] both", ""))
	write(t, dir+"/0003-c.diff", diffOf("c"))
	write(t, dir+"/.hidden.patch", diffOf("d"))
	write(t, dir+"/README", "hello")
	s, err := Read(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(subjects(s), []string{"a", "b"}) || s.Title != "both" || s.Version != 2 || s.Patches[1].File != dir+"/0002-b.patch" {
		t.Errorf("got %+v", s)
	}
}

// What is no series says why, and is the user's to mend.
func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string { return write(t, filepath.Join(dir, name), content) }
	folder := func(name string, content ...string) string {
		for i, c := range content {
			write(t, filepath.Join(dir, name, fmt.Sprintf("%04d.patch", i+1)), c)
		}
		_ = os.MkdirAll(filepath.Join(dir, name), 0o777)
		return filepath.Join(dir, name)
	}
	for name, tc := range map[string]struct{ spec, says string }{
		"nothing there":          {dir + "/nonesuch", "no such file"},
		"empty":                  {file("empty", ""), "empty"},
		"blank":                  {file("blank", "\n\n"), "empty"},
		"binary":                 {file("binary", "\x7fELF\x00\x00"), "not text"},
		"prose":                  {file("prose", "dear list\n"), "neither a mail nor a diff"},
		"mbox without patches":   {file("chat.mbox", letter("hello", "")+letter("Re: hello", "")), "none of its 2 messages is a patch"},
		"mbox of replies only":   {file("replies.mbox", letter("Re: [PATCH] a", "a")), "replies are not applied"},
		"a part is missing":      {file("hole.mbox", letter("[PATCH 1/3] a", "a")+letter("[PATCH 3/3] c", "c")), "missing: 2/3"},
		"two series":             {file("two.mbox", letter("[PATCH 1/1] a", "a")+letter("[PATCH 2/2] b", "b")), "different series"},
		"two patches, one place": {file("twice.mbox", letter("[PATCH 1/1] a", "a")+letter("[PATCH 1/1] b", "b")), "two different patches"},
		"numbered and not":       {file("mix.mbox", letter("[PATCH 1/1] a", "a")+letter("[PATCH] b", "b")), "no part number"},
		"part beyond the last":   {file("beyond.mbox", letter("[PATCH 1/1] a", "a")+letter("[PATCH 2/1] b", "b")), "part 2/1"},
		"no author":              {file("anon.patch", "Subject: [PATCH] x\n\n"+diffOf("x")), "no author"},
		"empty folder":           {folder("none"), "no *.patch file"},
		"an mbox in a folder":    {folder("nested", letter("[PATCH 1/2] a", "a")+letter("[PATCH 2/2] b", "b")), "holds 2 messages"},
		"a patch without a diff": {folder("hollow", letter("[PATCH 1/2] a", "a"), letter("[PATCH 2/2] b", "")), "0002.patch holds no diff"},
	} {
		s, err := Read(context.Background(), tc.spec, nil)
		var e *fault.Error
		if err == nil || !strings.Contains(err.Error(), tc.says) || !errors.As(err, &e) {
			t.Errorf("%s: got %q, %v; want %q", name, subjects(s), err, tc.says)
			continue
		}
		if fault.ExitCode(err) != fault.ExitConfiguration || !strings.Contains(err.Error(), tc.spec) || e.Next == "" {
			t.Errorf("%s: exit code %d, %v", name, fault.ExitCode(err), err)
		}
	}
}

func TestReadRefusesHugeInput(t *testing.T) {
	endless := strings.NewReader(strings.Repeat("x", limit+2))
	if _, err := Read(context.Background(), Stdin, endless); err == nil || !strings.Contains(err.Error(), "larger than 64 MB") {
		t.Errorf("got %v", err)
	}
	if endless.Len() == 0 {
		t.Error("all of it was read")
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, Stdin, strings.NewReader(letter("[PATCH] a", "a"))); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestReadLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, text := range []string{letter("[PATCH] a", "a"), letter("hello", ""), diffOf("x"), "prose"} {
		_, _ = Read(context.Background(), Stdin, strings.NewReader(text))
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
