// SPDX-License-Identifier: MIT

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/harness/internal/fault"
)

// fakePath makes PATH a folder with these programs, which print a line each
// when asked for their version.
func fakePath(t *testing.T, says map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, line := range says {
		script := "#!/bin/sh\necho '" + line + "'\n"
		if line == "" {
			script = "#!/bin/sh\necho no such option >&2\nexit 1\n"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func find(t *testing.T, r Report, name string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("nothing is said about %s", name)
	return Finding{}
}

func TestTools(t *testing.T) {
	fakePath(t, map[string]string{
		"git":                "git version 2.39.5 (Apple Git-154)",
		"ld":                 "GNU ld (GNU Binutils for Debian) 2.40",
		"perl":               "This is perl 5, version 36, subversion 0 (v5.36.0) built for x86_64",
		"pahole":             "v1.16",
		"vng":                "virtme-ng 1.9",
		"qemu-system-x86_64": "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u1)",
		"make":               "no number here",
		"bison":              "",
		"flex":               "",
		"dnf":                "4.0",
	})
	r := Check(t.Context(), Options{CacheDir: t.TempDir()})
	for _, want := range []Finding{
		{Name: "git", Status: Found, Version: "2.39.5"},
		{Name: "ld", Status: Found, Version: "2.40"},
		{Name: "perl", Status: Found, Version: "5.36.0"},
		{Name: "qemu-system-x86_64", Status: Found, Version: "7.2.22"},
		{Name: "pahole", Status: TooOld, Version: "1.16"},
		{Name: "vng", Status: TooOld, Version: "1.9"},
		{Name: "make", Status: Unusable},
		{Name: "bison", Status: Unusable},
		// Nobody cares how old flex is, so it is not asked.
		{Name: "flex", Status: Found},
		{Name: "gcc", Status: Missing},
		{Name: "go", Status: Missing},
	} {
		f := find(t, r, want.Name)
		if f.Status != want.Status || f.Version != want.Version {
			t.Errorf("%s: %s %q, want %s %q", f.Name, f.Status, f.Version, want.Status, want.Version)
		}
		if (f.Status == Found) == (f.Mend != "") {
			t.Errorf("%s is %s and is mended by %q", f.Name, f.Status, f.Mend)
		}
	}
	if r.OK() {
		t.Error("a machine without a compiler is called ready")
	}
	if f := find(t, r, "gcc"); !strings.Contains(f.Mend, "dnf install gcc glibc-devel") {
		t.Errorf("gcc is mended by %q", f.Mend)
	}
}

func TestRequire(t *testing.T) {
	fakePath(t, map[string]string{"vng": "virtme-ng 1.29"})
	for _, c := range []struct{ check, said string }{
		{"command:vng", "1.30 or newer"}, {"command:qemu-system-x86_64", "missing"},
	} {
		err := Require(t.Context(), c.check)
		var e *fault.Error
		if !errors.As(err, &e) || e.Blame != fault.Harness || !strings.Contains(err.Error(), c.said) || !strings.Contains(e.Next, "bin/setup") {
			t.Errorf("%s: %v", c.check, err)
		}
	}
	fakePath(t, map[string]string{"vng": "virtme-ng 1.30"})
	if err := Require(t.Context(), "command:vng"); err != nil {
		t.Error(err)
	}
}

func TestReady(t *testing.T) {
	for _, c := range []struct {
		finding Finding
		ready   bool
	}{
		{Finding{Status: Found, Required: true}, true},
		{Finding{Status: Missing}, true},
		{Finding{Status: Missing, Required: true}, false},
		{Finding{Status: TooLittle, Required: true}, false},
	} {
		if got := (Report{Ready: ready([]Finding{c.finding})}).OK(); got != c.ready {
			t.Errorf("%+v: ready is %v", c.finding, got)
		}
	}
}

func TestSizes(t *testing.T) {
	if f := (Finding{Mend: "make room"}).sized(5<<30, 6<<30); f.Status != TooLittle || f.Version != "5.0 GiB" || f.Mend == "" {
		t.Errorf("%+v", f)
	}
	if f := (Finding{Mend: "make room"}).sized(6<<30, 6<<30); f.Status != Found || f.Mend != "" {
		t.Errorf("%+v", f)
	}
	// The cache need not exist yet.
	if n, err := free(filepath.Join(t.TempDir(), "a", "b")); err != nil || n == 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if f := temporary(); f.Status != Unusable || f.Detail == "" {
		t.Errorf("%+v", f)
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		older bool
	}{{"1.9", "1.30", true}, {"1.30", "1.30", false}, {"1.30.1", "1.30", false}, {"2", "1.30", false}, {"6.2", "6.2.1", true}} {
		if older(c.a, c.b) != c.older {
			t.Errorf("%s older than %s: want %v", c.a, c.b, c.older)
		}
	}
}

func TestTable(t *testing.T) {
	for _, n := range needs() {
		kind, what, ok := strings.Cut(n.check, ":")
		if !ok || (kind != "command" && kind != "file") || what == "" || n.purpose == "" || n.packages["apt-get"] == "" {
			t.Errorf("%+v", n)
		}
		switch n.level {
		case "must", "lint", "may":
		default:
			t.Errorf("%s: level %q", n.check, n.level)
		}
	}
}

func TestRenderings(t *testing.T) {
	r := Report{Findings: []Finding{
		{Name: "git", Status: Found, Required: true, Version: "2.40", For: "sources"},
		{Name: "vng", Status: TooOld, Required: true, Version: "1.9", Minimum: "1.30", For: "guests", Mend: "bin/setup"},
		{Name: "KVM", Status: Missing, For: "speed", Detail: "no such file", Mend: "modprobe kvm"},
	}}
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ok  git", "NO  vng", "too old 1.9, needs 1.30", "mend: bin/setup", "--  KVM", "why: no such file", "cannot run"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	data, err := json.Marshal(r)
	var back Report
	if err != nil || json.Unmarshal(data, &back) != nil || back.Findings[1] != r.Findings[1] {
		t.Errorf("%s, %v", data, err)
	}
}

// TestThisMachine needs only what runs this test.
func TestThisMachine(t *testing.T) {
	r := Check(context.Background(), Options{CacheDir: t.TempDir()})
	if f := find(t, r, "go"); f.Status != Found || f.Version == "" {
		t.Errorf("%+v", f)
	}
	find(t, r, "KVM")
}
