// SPDX-License-Identifier: MIT

package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
)

const testPackage = "linux-source-99.1"

// deb builds a package with the real tool. Its sources are in
// usr/src/NAME.tar.xz, unless there are none.
func deb(t *testing.T, version string, sources []byte) string {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed: packages cannot be had here anyway")
	}
	root := filepath.Join(t.TempDir(), "root")
	write(t, root, map[string]string{
		"DEBIAN/control":       "Package: " + testPackage + "\nVersion: " + version + "\nArchitecture: all\nMaintainer: Ada <ada@example.org>\nDescription: a kernel\n",
		"usr/share/doc/README": "not the sources\n",
	})
	if sources != nil {
		write(t, root, map[string]string{"usr/src/" + testPackage + ".tar.xz": string(sources)})
	}
	out := filepath.Join(t.TempDir(), testPackage+".deb")
	if said, err := exec.Command("dpkg-deb", "--root-owner-group", "-Zxz", "-b", root, out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return out
}

// archive makes an apt archive with packages, and lets apt see no other. In
// apt's eyes it is Debian's.
func archive(t *testing.T, debs ...string) {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("apt-get is not installed: packages cannot be fetched here anyway")
	}
	dir := t.TempDir()
	index := ""
	for i, d := range debs {
		data, err := os.ReadFile(d)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%d.deb", i)
		fields, err := exec.Command("dpkg-deb", "--field", d).Output()
		if err != nil {
			t.Fatal(err)
		}
		index += fmt.Sprintf("%sFilename: ./%s\nSize: %d\nSHA256: %s\n\n", fields, name, len(data), sumOf(data))
		write(t, dir, map[string]string{name: string(data)})
	}
	write(t, dir, map[string]string{
		"Packages": index,
		"Release": fmt.Sprintf(
			"Origin: Debian\nCodename: bookworm\nSuite: stable\nDate: Tue, 01 Dec 2026 00:00:00 UTC\nSHA256:\n %s %d Packages\n",
			sumOf([]byte(index)), len(index),
		),
	})
	state := t.TempDir()
	write(t, state, map[string]string{
		"sources.list":              "deb [trusted=yes] file:" + dir + " ./\n",
		"apt.conf":                  "",
		"lists/partial/.x":          "",
		"cache/archives/x":          "",
		"cache/archives/partial/.x": "",
	})
	conf := filepath.Join(state, "apt.conf")
	text := ""
	for key, value := range map[string]string{
		"Dir::Etc::sourcelist": state + "/sources.list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": state + "/lists",
		"Dir::Cache": state + "/cache", "APT::Sandbox::User": "root", "Acquire::Languages": "none",
	} {
		text += fmt.Sprintf("%s %q;\n", key, value)
	}
	if err := os.WriteFile(conf, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("APT_CONFIG", conf)
	if said, err := exec.Command("apt-get", "-q", "update").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
}

// versioned is a packed kernel tree whose sublevel is the number.
func versioned(t *testing.T, sublevel int) []byte {
	t.Helper()
	makefile := fmt.Sprintf("VERSION = 99\nPATCHLEVEL = 1\nSUBLEVEL = %d\n", sublevel)
	return packed(t, tarOf(t, entry{name: "linux/Makefile", text: makefile}, entry{name: "linux/Kconfig", text: "x"}), "xz")
}

var packageBase = Source{Base: &Base{Name: "v99.1", Ways: []Way{{Package: testPackage}}}}

// A package that is not installed is downloaded, by any user, and only once:
// what the store has is used until a newer one is installed.
func TestPackageFetched(t *testing.T) {
	older, newer := deb(t, "99.1.2-1~deb12u1", versioned(t, 2)), deb(t, "99.1.10-1", versioned(t, 10))
	archive(t, older)
	var steps []string
	s, err := Open(context.Background(), filepath.Join(t.TempDir(), "a cache"), func(e progress.Event) {
		steps = append(steps, fmt.Sprint(e.Step, " ", e.State, " ", e.Cached, " ", e.Detail))
	})
	if err != nil {
		t.Fatal(err)
	}
	c := resolve(t, s, packageBase)
	if want := "v99.1: 99.1.2, Debian " + testPackage + " 99.1.2-1~deb12u1"; c.Describe != want || c.Version != "99.1.2" {
		t.Errorf("it is %+v, want %s", c, want)
	}
	if len(steps) == 0 || !strings.HasPrefix(steps[0], "fetch ") {
		t.Errorf("steps: %q", steps)
	}
	noScratch(t, s)

	archive(t, newer)
	steps = nil
	if again := resolve(t, s, packageBase); again.ID != c.ID {
		t.Errorf("it is now %+v", again)
	}
	if len(steps) != 1 || !strings.Contains(steps[0], "import") {
		t.Errorf("steps: %q", steps)
	}
	// The store holds both: the newest is taken, by version and not by name.
	if _, err := s.fetchPackage(context.Background(), testPackage, ""); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := s.fromStored(context.Background(), testPackage); err != nil || !ok || got.Version != "99.1.10" {
		t.Errorf("of both it takes %+v, %v, %v", got, ok, err)
	}
}

func TestPackageRefused(t *testing.T) {
	whole := versioned(t, 2)
	for name, c := range map[string]struct {
		sources []byte
		say     string
	}{
		"no sources":  {nil, "has no usr/src/" + testPackage + ".tar.xz"},
		"cut sources": {whole[:len(whole)-20], "xz: (stdin): Unexpected end of input"},
		"no kernel":   {packed(t, tarOf(t, entry{name: "x/README", text: "x"}), "xz"), "no kernel tree"},
	} {
		t.Run(name, func(t *testing.T) {
			archive(t, deb(t, "99.1.2-1", c.sources))
			s := open(t)
			_, err := s.Resolve(context.Background(), packageBase)
			faulty(t, err, fault.Harness, "v99.1", "package "+testPackage, c.say, "name a kernel tree")
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v is not ErrUnavailable", err)
			}
			nothingLeft(t, s)
		})
	}
	t.Run("cut package", func(t *testing.T) {
		d := deb(t, "99.1.2-1", whole)
		info, err := os.Stat(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(d, info.Size()-30); err != nil {
			t.Fatal(err)
		}
		s := open(t)
		lock, err := s.lock(context.Background(), "import")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if id, err := s.importDeb(context.Background(), lock, "refs/sources/x", "x", d, testPackage); err == nil {
			t.Errorf("taken for %s", id)
		}
		nothingLeft(t, s)
	})
	t.Run("not there", func(t *testing.T) {
		archive(t)
		_, err := open(t).Resolve(context.Background(), packageBase)
		faulty(t, err, fault.Harness, "the suites apt is configured for", "Unable to locate package "+testPackage)
	})
}

// Another suite is asked for at the mirror that apt is configured for, which
// must be one of Debian's.
func TestDebianMirror(t *testing.T) {
	archive(t, deb(t, "99.1.2-1", nil))
	mirror, err := debianMirror(context.Background(), false)
	if err != nil || !strings.HasPrefix(mirror, "file:/") {
		t.Errorf("%q, %v", mirror, err)
	}
	if mirror, err := debianMirror(context.Background(), true); err == nil {
		t.Errorf("for security updates it is %q", mirror)
	}
	s := open(t)
	s.host.keyrings = nil
	_, err = s.otherSuite(context.Background(), "trixie", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "debian-archive-keyring") {
		t.Errorf("without keys: %v", err)
	}
}

// An installed package is taken from where it is, if it is what was installed.
func TestPackageInstalled(t *testing.T) {
	const name = "linux-source-6.12"
	version := installed(context.Background(), name)
	if version == "" {
		t.Skip(name + " is not installed")
	}
	if none := installed(context.Background(), testPackage); none != "" {
		t.Errorf("%s is installed: %s", testPackage, none)
	}
	s := open(t)
	s.host.sources = t.TempDir()
	_, err := s.fromInstalled(context.Background(), name, version)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	write(t, s.host.sources, map[string]string{name + ".tar.xz": string(versioned(t, 2))})
	_, err = s.fromInstalled(context.Background(), name, version)
	if err == nil || !strings.Contains(err.Error(), "its checksum is ") {
		t.Errorf("with another file: %v", err)
	}
	nothingLeft(t, s)
}

func TestPackageRef(t *testing.T) {
	s := open(t)
	c := resolve(t, s, Source{Tarball: file(t, "a.tar", tarOf(t, kernelEntries("linux/")...))})
	seen := map[string]bool{}
	for _, version := range []string{"6.12.117-1", "1:6.12", "6.12~rc1", "6.12+deb12u1", "6%12", "6-12"} {
		ref := packageRef(testPackage, version)
		if seen[ref] {
			t.Errorf("%s stands for two versions", ref)
		}
		seen[ref] = true
		if _, err := s.Git(context.Background(), Git{}, "update-ref", ref, c.ID); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
	if diff := cmp.Diff("refs/sources/package/p/v1%3A6%7E1", packageRef("p", "1:6~1")); diff != "" {
		t.Error(diff)
	}
}
