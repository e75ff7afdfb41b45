// SPDX-License-Identifier: MIT

package tree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
)

// entry is a member of a tar archive.
type entry struct {
	name, text string
	link       string // what a link points to
	kind       byte   // tar.TypeReg if 0
	mode       int64  // 0644 if 0
}

// kernelEntries are the files of a kernel tree below a folder.
func kernelEntries(top string) []entry {
	all := []entry{{name: top, kind: tar.TypeDir, mode: 0o755}}
	for _, name := range slices.Sorted(maps.Keys(kernelFiles)) {
		all = append(all, entry{name: top + name, text: kernelFiles[name]})
	}
	return all
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.text))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// file puts bytes into a file and returns its path.
func file(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// packed passes bytes through a program that packs them.
func packed(t *testing.T, data []byte, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTarball(t *testing.T) {
	archive := tarOf(t, append(
		kernelEntries("linux-6.12.3/"),
		entry{name: "linux-6.12.3/scripts/run.sh", text: "#!/bin/sh\n", mode: 0o755},
		entry{name: "linux-6.12.3/net/link", kind: tar.TypeSymlink, link: "../Kconfig"},
		entry{name: "linux-6.12.3/net/same", kind: tar.TypeLink, link: "linux-6.12.3/Kconfig"},
		entry{name: "linux-6.12.3/empty", text: ""},
		entry{name: "linux-6.12.3/odd \"name\"\nof a file", text: "odd\n"},
		entry{name: "linux-6.12.3/" + strings.Repeat("long/", 60) + "name", text: "deep\n"},
	)...)
	want := plain(kernelFiles)
	want["scripts/run.sh"] = "100755 #!/bin/sh\n"
	want["net/link"] = "120000 ../Kconfig"
	want["net/same"] = "100644 " + kernelFiles["Kconfig"]
	want["empty"] = "100644 "
	want["odd \"name\"\nof a file"] = "100644 odd\n"
	want[strings.Repeat("long/", 60)+"name"] = "100644 deep\n"

	trees := map[string]bool{}
	for name, pack := range map[string]func(t *testing.T) []byte{
		"linux.tar":     func(*testing.T) []byte { return archive },
		"linux.tar.gz":  func(t *testing.T) []byte { return packed(t, archive, "gzip") },
		"linux.tar.bz2": func(t *testing.T) []byte { return packed(t, archive, "bzip2") },
		"linux.tar.xz":  func(t *testing.T) []byte { return packed(t, archive, "xz") },
		"linux.tar.zst": func(t *testing.T) []byte { return packed(t, archive, "zstd") },
		// Nothing but the content tells how it is packed.
		"linux": func(t *testing.T) []byte { return packed(t, archive, "xz", "-9") },
	} {
		t.Run(name, func(t *testing.T) {
			data := pack(t)
			s, path := open(t), file(t, name, data)
			c := resolve(t, s, Source{Tarball: path, SHA256: strings.ToUpper(sumOf(data))})
			if diff := cmp.Diff(want, content(t, s, c)); diff != "" {
				t.Error(diff)
			}
			if c.Version != kernelFilesVersion || c.Describe != kernelFilesVersion+", "+name {
				t.Errorf("it is %+v", c)
			}
			noScratch(t, s)
			trees[c.Tree] = true

			// The second time nothing is unpacked.
			var steps []progress.Event
			again, err := Open(context.Background(), s.cache, func(e progress.Event) { steps = append(steps, e) })
			if err != nil {
				t.Fatal(err)
			}
			if second := resolve(t, again, Source{Tarball: path}); second.ID != c.ID {
				t.Errorf("the second time it is %+v", second)
			}
			if len(steps) != 1 || !steps[0].Cached {
				t.Errorf("the second time the steps were %+v", steps)
			}
		})
	}
	if len(trees) != 1 {
		t.Errorf("the same files are %d trees", len(trees))
	}
}

// An archive without a folder around it is a kernel tree as well.
func TestTarballWithoutFolder(t *testing.T) {
	s := open(t)
	c := resolve(t, s, Source{Tarball: file(t, "a.tar", tarOf(t, kernelEntries("./")[1:]...))})
	if diff := cmp.Diff(plain(kernelFiles), content(t, s, c)); diff != "" {
		t.Error(diff)
	}
}

func TestTarballRefused(t *testing.T) {
	s := open(t)
	big := make([]byte, 1<<20)
	if _, err := rand.Read(big); err != nil {
		t.Fatal(err)
	}
	good := tarOf(t, append(kernelEntries("linux/"), entry{name: "linux/big", text: string(big)})...)
	with := func(e ...entry) []byte { return tarOf(t, append(kernelEntries("linux/"), e...)...) }
	gz := packed(t, good, "gzip")
	xz := packed(t, good, "xz")
	flipped := slices.Clone(xz)
	flipped[len(flipped)/2] ^= 1
	crc := slices.Clone(gz)
	crc[len(crc)-5] ^= 1

	for name, c := range map[string]struct {
		data []byte
		sum  string
		say  string
	}{
		"cut in a file":        {good[:len(good)/2], "", "cut off"},
		"cut in a header":      {good[:700], "", "cut off"},
		"without its end":      {good[:len(good)-1024], "", "cut off"},
		"cut gzip":             {gz[:len(gz)/2], "", "cut off"},
		"cut gzip checksum":    {gz[:len(gz)-4], "", ""},
		"gzip checksum":        {crc, "", "checksum"},
		"cut xz":               {xz[:len(xz)/2], "", "xz: (stdin): Unexpected end of input"},
		"cut xz tail":          {xz[:len(xz)-8], "", "xz: (stdin): Unexpected end of input"},
		"damaged xz":           {flipped, "", "xz: (stdin): Compressed data is corrupt"},
		"empty":                {nil, "", "no tar archive"},
		"short text":           {[]byte("hello"), "", "no tar archive"},
		"a web page":           {[]byte(strings.Repeat("<html>404</html>", 100)), "", "no tar archive"},
		"another sha256":       {good, strings.Repeat("0", 64), "its sha256 is " + sumOf(good) + ", but 000"},
		"malformed sha256":     {good, "abc", "not 64 hexadecimal digits"},
		"no kernel":            {tarOf(t, entry{name: "linux/README", text: "no"}), "", "no kernel tree"},
		"nothing in it":        {tarOf(t), "", "no tar archive"},
		"path above":           {with(entry{name: "../evil", text: "x"}), "", `"../evil" would lie outside`},
		"path above, hidden":   {with(entry{name: "linux/../../evil", text: "x"}), "", "would lie outside"},
		"absolute path":        {with(entry{name: "/etc/evil", text: "x"}), "", "would lie outside"},
		"git's own folder":     {with(entry{name: "linux/.git/config", text: "x"}), "", "cannot be kept in git"},
		"git's folder, big":    {with(entry{name: "linux/.GIT/hooks/x", text: "x"}), "", "cannot be kept in git"},
		"link above":           {with(entry{name: "linux/l", kind: tar.TypeSymlink, link: "../../etc"}), "", "points out of the archive"},
		"absolute link":        {with(entry{name: "linux/l", kind: tar.TypeSymlink, link: "/etc"}), "", "points out of the archive"},
		"hard link above":      {with(entry{name: "linux/l", kind: tar.TypeLink, link: "../etc"}), "", "would lie outside"},
		"hard link to nothing": {with(entry{name: "linux/l", kind: tar.TypeLink, link: "linux/none"}), "", "git fast-import"},
		"device":               {with(entry{name: "linux/dev", kind: tar.TypeChar}), "", "neither a file nor a link"},
		"file as a folder":     {with(entry{name: "linux/Kconfig/x", text: "x"}), "", "no kernel tree"},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, "linux.tar", c.data)
			wrong(t, s, Source{Tarball: path, SHA256: c.sum}, fault.Configuration, "importing the tarball", path, c.say, "nothing of it was kept")
			nothingLeft(t, s)
		})
	}
	// They leave a store that works.
	resolve(t, s, Source{Tarball: file(t, "good.tar", good)})
	wrong(t, s, Source{Tarball: filepath.Join(t.TempDir(), "none.tar")}, fault.Configuration, "none.tar", "no such file")
	wrong(t, s, Source{Tarball: t.TempDir()}, fault.Configuration, "not a file")
}

// A checksum is remembered only for as long as it is that file's.
func TestTarballReplaced(t *testing.T) {
	s := open(t)
	path := file(t, "a.tar", tarOf(t, kernelEntries("linux/")...))
	past := func() {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, info.ModTime().Add(-1e10), info.ModTime().Add(-1e10)); err != nil {
			t.Fatal(err)
		}
	}
	past()
	first := resolve(t, s, Source{Tarball: path})
	notes, _ := filepath.Glob(filepath.Join(s.cache, "checksums", "*.json"))
	if len(notes) != 1 {
		t.Fatalf("remembered: %q", notes)
	}
	other := tarOf(t, append(kernelEntries("linux/"), entry{name: "linux/new", text: "x"})...)
	if err := os.WriteFile(path, other, 0o666); err != nil {
		t.Fatal(err)
	}
	if second := resolve(t, s, Source{Tarball: path, SHA256: sumOf(other)}); second.Tree == first.Tree {
		t.Error("the replaced file was taken for the one before")
	}
	if err := os.WriteFile(notes[0], []byte(`{"sha`), 0o666); err != nil {
		t.Fatal(err)
	}
	past()
	resolve(t, s, Source{Tarball: path, SHA256: sumOf(other)})
}

// An import that is given up at its start or in the middle leaves nothing, and
// the next one works.
func TestCancelledImport(t *testing.T) {
	data := packed(t, tarOf(t, append(kernelEntries("linux/"), entry{name: "linux/big", text: strings.Repeat("big\n", 1<<20)})...), "xz")
	for _, after := range []int{0, len(data) / 2, len(data) - 1} {
		ctx, cancel := context.WithCancel(context.Background())
		s := open(t)
		lock, err := s.lock(ctx, "import")
		if err != nil {
			t.Fatal(err)
		}
		r := io.MultiReader(bytes.NewReader(data[:after]), atRead(cancel), bytes.NewReader(data[after:]))
		if after == 0 {
			cancel()
		}
		if _, err := s.importPacked(ctx, lock, "refs/sources/x", "x", r, nil, ""); !errors.Is(err, context.Canceled) {
			t.Errorf("after %d bytes it was not cancelled: %v", after, err)
		}
		nothingLeft(t, s)
		lock.Close()
		resolve(t, s, Source{Tarball: file(t, "a.tar.xz", data)})
		noScratch(t, s)
	}
}

// atRead is a reader without content that calls a function when it is read.
type atRead func()

func (f atRead) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// What a killed import left is removed by the next one.
func TestKilledImport(t *testing.T) {
	s := open(t)
	write(t, s.cache, map[string]string{"tmp/import/objects/pack/tmp_pack_x": "half", "tmp/import/config": "["})
	resolve(t, s, Source{Tarball: file(t, "a.tar", tarOf(t, kernelEntries("linux/")...))})
	noScratch(t, s)
}

// Two that want the same tarball at once unpack it once.
func TestImportedOnce(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "a cache")
	path := file(t, "a.tar", tarOf(t, kernelEntries("linux/")...))
	var mu sync.Mutex
	unpacked := 0
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			s, err := Open(context.Background(), cache, func(e progress.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.State == progress.Started {
					unpacked++
				}
			})
			if err == nil {
				_, err = s.Resolve(context.Background(), Source{Tarball: path})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if unpacked != 1 {
		t.Errorf("it was unpacked %d times", unpacked)
	}
}

// served is a base whose tarball is on a web server.
func served(t *testing.T, s *Store, sum string, answer http.HandlerFunc) Source {
	t.Helper()
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	s.host.client = server.Client()
	return Source{Base: &Base{Name: "v6.12", Ways: []Way{{Tarball: &Download{URL: server.URL + "/linux-6.12.3.tar", SHA256: sum}}}}}
}

func TestDownload(t *testing.T) {
	s := open(t)
	good := tarOf(t, kernelEntries("linux-6.12.3/")...)
	asked := 0
	src := served(t, s, sumOf(good), func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Write(good)
	})
	for range 2 {
		c := resolve(t, s, src)
		if diff := cmp.Diff(plain(kernelFiles), content(t, s, c)); diff != "" {
			t.Error(diff)
		}
		if want := "v6.12: " + kernelFilesVersion + ", linux-6.12.3.tar"; c.Describe != want {
			t.Errorf("%q, want %q", c.Describe, want)
		}
	}
	if asked != 1 {
		t.Errorf("it was fetched %d times", asked)
	}
	noScratch(t, s)
}

func TestDownloadRefused(t *testing.T) {
	good := tarOf(t, kernelEntries("linux-6.12.3/")...)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(good)
	z.Close()
	for name, c := range map[string]struct {
		sum    string
		answer http.HandlerFunc
		say    string
	}{
		"no sum": {"", func(w http.ResponseWriter, _ *http.Request) {
			t.Error("it was fetched")
			w.Write(good)
		}, "no sha256 is recorded"},
		"not there":    {sumOf(good), http.NotFound, "the server says 404"},
		"another":      {sumOf(good), func(w http.ResponseWriter, _ *http.Request) { w.Write(zipped.Bytes()) }, "its sha256 is"},
		"half an hour": {sumOf(good), func(w http.ResponseWriter, _ *http.Request) { w.Write(good[:512]) }, "its sha256 is"},
		"cut on the way": {sumOf(good), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			w.Write(good[:512])
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			src := served(t, s, c.sum, c.answer)
			_, err := s.Resolve(context.Background(), src)
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v is not ErrUnavailable", err)
			}
			faulty(t, err, fault.Harness, "getting the kernel sources: v6.12", src.Base.Ways[0].String(), c.say)
			nothingLeft(t, s)
		})
	}
}

// The ways are tried in their order, and what failed is told of each.
func TestWaysInOrder(t *testing.T) {
	s := open(t)
	good := tarOf(t, kernelEntries("linux-6.12.3/")...)
	src := served(t, s, sumOf(good), func(w http.ResponseWriter, _ *http.Request) { w.Write(good) })
	works := src.Base.Ways[0]
	none := Way{Tarball: &Download{URL: "https://example.org/none.tar"}}
	src.Base.Ways = []Way{none, works}
	resolve(t, s, src)
	src.Base.Ways = []Way{none, {Tarball: &Download{URL: strings.Replace(works.Tarball.URL, "linux", "other", 1)}}}
	_, err := s.Resolve(context.Background(), src)
	faulty(t, err, fault.Harness, "\n    tarball https://example.org/none.tar: no sha256", "\n    tarball "+src.Base.Ways[1].Tarball.URL+": no sha256")
}
