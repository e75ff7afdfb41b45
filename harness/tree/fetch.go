// SPDX-License-Identifier: MIT

package tree

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
)

// ErrUnavailable is in the error of a base that cannot be had now: no way to
// its sources works.
var ErrUnavailable = errors.New("none of the ways to its sources works")

// host is where this machine keeps things and how it reaches the web.
type host struct {
	sources  string   // the folder that linux-source packages install to
	keyrings []string // where the Debian archive's keys are, first match
	client   *http.Client
}

var machine = host{
	sources: "/usr/src",
	keyrings: []string{
		"/usr/share/keyrings/debian-archive-keyring.gpg",
		"/usr/share/keyrings/debian-archive-keyring.pgp",
	},
	client: http.DefaultClient,
}

// stalled is how long a download may bring nothing before it is given up.
const stalled = time.Minute

// Resolve finds the sources, imports what the store does not have, and returns
// the commit. What a user named and got wrong is a configuration error; a base
// that cannot be had is ErrUnavailable.
func (s *Store) Resolve(ctx context.Context, src Source) (Commit, error) {
	switch {
	case src.Base != nil:
		return s.fromBase(ctx, *src.Base)
	case src.Dir != "":
		return s.fromDir(ctx, src.Dir, src.Rev)
	case src.Tarball != "":
		return s.fromTarball(ctx, src.Tarball, src.SHA256)
	}
	return Commit{}, &fault.Error{
		Blame: fault.Configuration, Doing: "finding the kernel sources", Err: errors.New("no base, folder or tarball is named"),
		Next: "name one of them",
	}
}

func (s *Store) fromBase(ctx context.Context, b Base) (Commit, error) {
	failed := &multierror.Error{ErrorFormat: func(errs []error) string {
		var lines strings.Builder
		for _, err := range errs {
			lines.WriteString("\n    " + strings.ReplaceAll(err.Error(), "\n", "\n      "))
		}
		return lines.String()
	}}
	for _, w := range b.Ways {
		var c Commit
		var err error
		if w.Tarball != nil {
			c, err = s.download(ctx, *w.Tarball)
		} else {
			c, err = s.fromPackage(ctx, w)
		}
		if ctx.Err() != nil {
			return Commit{}, ctx.Err()
		}
		if err == nil {
			c.Describe = b.Name + ": " + c.Describe
			return c, nil
		}
		failed = multierror.Append(failed, fmt.Errorf("%s: %w", w, err))
	}
	return Commit{}, &fault.Error{
		Blame: fault.Harness, Doing: "getting the kernel sources", Subject: b.Name,
		Err:  fmt.Errorf("%w:%w", ErrUnavailable, failed),
		Next: "mend one of the ways, or name a kernel tree or a tarball of your own",
	}
}

// stored returns the commit that a source ref points to, if it is there.
func (s *Store) stored(ctx context.Context, ref string) (id string, ok bool) {
	id, err := s.line(ctx, Git{}, "rev-parse", "--verify", "--quiet", ref)
	return id, err == nil
}

// once returns the commit at ref; if it is not there, what makes it is called
// under the import lock.
func (s *Store) once(ctx context.Context, ref, title string, do func(hold *os.File) (string, error)) (Commit, error) {
	id, ok := s.stored(ctx, ref)
	if ok {
		s.news.Send(progress.Event{Step: "import", State: progress.Finished, Detail: title, Cached: true})
	} else {
		lock, err := s.lock(ctx, "import")
		if err != nil {
			return Commit{}, err
		}
		defer lock.Close()
		if id, ok = s.stored(ctx, ref); !ok {
			if id, err = do(lock); err != nil {
				return Commit{}, err
			}
		}
	}
	c, err := s.Commit(ctx, id, "", nil)
	c.Describe = c.Version + ", " + title
	return c, err
}

// importPacked imports a packed tar stream. sum, if not nil, is fed with the
// packed bytes and must then be want.
func (s *Store) importPacked(ctx context.Context, hold *os.File, ref, title string, r io.Reader, sum hash.Hash, want string) (string, error) {
	packed := r
	if sum != nil {
		packed = io.TeeReader(r, sum)
	}
	p, err := unpack(ctx, packed)
	if err != nil {
		return "", err
	}
	return s.importTar(ctx, hold, ref, title, p, func() error {
		if err := p.close(); err != nil || sum == nil {
			return err
		}
		if _, err := io.Copy(io.Discard, packed); err != nil {
			return err
		}
		if have := hex.EncodeToString(sum.Sum(nil)); have != want {
			return fmt.Errorf("its checksum is %s, but %s is expected", have, want)
		}
		return nil
	})
}

func (s *Store) fromTarball(ctx context.Context, file, want string) (Commit, error) {
	c, err := s.tarball(ctx, file, want)
	var e *fault.Error
	if err == nil || ctx.Err() != nil || errors.As(err, &e) {
		return c, err
	}
	return Commit{}, &fault.Error{
		Blame: fault.Configuration, Doing: "importing the tarball", Subject: file, Err: err,
		Next: "get the file again, or name another; nothing of it was kept",
	}
}

func (s *Store) tarball(ctx context.Context, file, want string) (Commit, error) {
	if want = strings.ToLower(want); want != "" && !goodSHA256.MatchString(want) {
		return Commit{}, fmt.Errorf("the sha256 %q is not 64 hexadecimal digits", want)
	}
	sum, err := s.checksum(file)
	if err != nil {
		return Commit{}, err
	}
	if want != "" && sum != want {
		return Commit{}, fmt.Errorf("its sha256 is %s, but %s is expected", sum, want)
	}
	ref, title := "refs/sources/tarball/"+sum, filepath.Base(file)
	return s.once(ctx, ref, title, func(hold *os.File) (string, error) {
		in, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer in.Close()
		return s.importPacked(ctx, hold, ref, title, in, sha256.New(), sum)
	})
}

// checksum returns the sha256 of a file. It is remembered for as long as the
// file looks the same, because a warm run should not read 150 MB for it.
func (s *Store) checksum(file string) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	in, err := os.Open(abs)
	if err != nil {
		return "", err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("it is not a file")
	}
	type look struct {
		Path   string
		Size   int64
		Time   time.Time
		Inode  uint64
		SHA256 string
	}
	now := look{Path: abs, Size: info.Size(), Time: info.ModTime().UTC()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		now.Inode = st.Ino
	}
	key := sha256.Sum256([]byte(abs))
	note := filepath.Join(s.cache, "checksums", hex.EncodeToString(key[:12])+".json")
	if data, err := os.ReadFile(note); err == nil {
		var then look
		if json.Unmarshal(data, &then) == nil && goodSHA256.MatchString(then.SHA256) {
			now.SHA256 = then.SHA256
			if now == then {
				return then.SHA256, nil
			}
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", err
	}
	now.SHA256 = hex.EncodeToString(sum.Sum(nil))
	// A file that is being written may change again within the resolution of
	// its time.
	if time.Since(now.Time) < 2*time.Second {
		return now.SHA256, nil
	}
	data, err := json.Marshal(now)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(note), 0o777); err != nil {
		return "", cannotWrite(note, err)
	}
	if err := os.WriteFile(note, data, 0o666); err != nil {
		return "", cannotWrite(note, err)
	}
	return now.SHA256, nil
}

// download gets a tarball from the web.
func (s *Store) download(ctx context.Context, d Download) (Commit, error) {
	if d.SHA256 == "" {
		return Commit{}, errors.New("no sha256 is recorded for it, and what cannot be verified is not fetched")
	}
	ref, title := "refs/sources/tarball/"+d.SHA256, path.Base(d.URL)
	if _, ok := s.stored(ctx, ref); ok {
		return s.once(ctx, ref, title, nil)
	}
	lock, err := s.lock(ctx, "fetch")
	if err != nil {
		return Commit{}, err
	}
	defer lock.Close()
	if _, ok := s.stored(ctx, ref); ok {
		return s.once(ctx, ref, title, nil)
	}
	scratch, err := s.TempDir()
	if err != nil {
		return Commit{}, err
	}
	defer os.RemoveAll(scratch)
	file := filepath.Join(scratch, title)
	s.news.Send(progress.Event{Step: "fetch", State: progress.Started, Detail: d.URL})
	if err := s.get(ctx, d.URL, file); err != nil {
		s.news.Send(progress.Event{Step: "fetch", State: progress.Failed, Detail: d.URL})
		return Commit{}, err
	}
	s.news.Send(progress.Event{Step: "fetch", State: progress.Finished, Detail: d.URL})
	return s.tarball(ctx, file, d.SHA256)
}

// get downloads a file.
func (s *Store) get(ctx context.Context, url, file string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(stalled, func() { cancel(fmt.Errorf("nothing came for %v", stalled)) })
	defer watch.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := s.host.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server says %s", resp.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return cannotWrite(file, err)
	}
	_, err = io.Copy(out, alive{resp.Body, watch})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// alive is a reader that puts off an alarm with every read.
type alive struct {
	io.Reader
	alarm *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	a.alarm.Reset(stalled)
	return n, err
}

// packageRef is where a version of a package is kept.
func packageRef(name, version string) string {
	var b strings.Builder
	for i := range len(version) {
		// Versions have characters that a ref cannot have, such as ~ and :.
		if c := version[i]; c == '.' || c == '-' || c == '+' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return packageRefs(name) + "/v" + b.String()
}

func packageRefs(name string) string { return "refs/sources/package/" + name }

// fromPackage takes a package that is installed, or one that the store already
// has, or else fetches one. Root is needed for none of them.
func (s *Store) fromPackage(ctx context.Context, w Way) (Commit, error) {
	var failed *multierror.Error
	if version := installed(ctx, w.Package); version != "" {
		c, err := s.fromInstalled(ctx, w.Package, version)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		failed = multierror.Append(failed, fmt.Errorf("version %s is installed, but: %w", version, err))
	}
	if c, ok, err := s.fromStored(ctx, w.Package); ok || err != nil {
		return c, err
	}
	lock, err := s.lock(ctx, "fetch")
	if err != nil {
		return Commit{}, err
	}
	defer lock.Close()
	if c, ok, err := s.fromStored(ctx, w.Package); ok || err != nil {
		return c, err
	}
	for _, suite := range append([]string{""}, w.Suites...) {
		c, err := s.fetchPackage(ctx, w.Package, suite)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		where := "the suites apt is configured for"
		if suite != "" {
			where = "suite " + suite
		}
		failed = multierror.Append(failed, fmt.Errorf("%s: %w", where, err))
	}
	failed.ErrorFormat = func(errs []error) string {
		lines := make([]string, len(errs))
		for i, err := range errs {
			lines[i] = err.Error()
		}
		return strings.Join(lines, "\n")
	}
	return Commit{}, failed
}

func packageTitle(name, version string) string { return "Debian " + name + " " + version }

// fromStored returns the newest version of the package in the store.
func (s *Store) fromStored(ctx context.Context, name string) (Commit, bool, error) {
	said, err := s.line(ctx, Git{}, "for-each-ref", "--sort=-version:refname", "--count=1", "--format=%(refname) %(subject)", packageRefs(name))
	ref, title, ok := strings.Cut(said, " ")
	if err != nil || !ok {
		return Commit{}, false, err
	}
	c, err := s.once(ctx, ref, title, nil)
	return c, err == nil, err
}

// installed returns the version of an installed package, or "".
func installed(ctx context.Context, name string) string {
	out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", name).Output()
	if err != nil {
		return ""
	}
	version, ok := strings.CutPrefix(string(out), "installed ")
	if !ok {
		return ""
	}
	return version
}

func (s *Store) fromInstalled(ctx context.Context, name, version string) (Commit, error) {
	ref, title := packageRef(name, version), packageTitle(name, version)
	return s.once(ctx, ref, title, func(hold *os.File) (string, error) {
		// The package says what the file must be: another may have been put
		// in its place, or it may be cut off.
		sums, err := run(ctx, "", "dpkg-query", "--control-show", name, "md5sums")
		if err != nil {
			return "", err
		}
		want := ""
		for line := range strings.Lines(sums) {
			if sum, file, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && file == "usr/src/"+name+".tar.xz" {
				want = sum
			}
		}
		if want == "" {
			return "", fmt.Errorf("the package has no usr/src/%s.tar.xz", name)
		}
		in, err := os.Open(filepath.Join(s.host.sources, name+".tar.xz"))
		if err != nil {
			return "", err
		}
		defer in.Close()
		return s.importPacked(ctx, hold, ref, title, in, md5.New(), want)
	})
}

// fetchPackage downloads a package with apt-get, from the suites apt is
// configured for or from another suite of the same mirror, and imports it.
func (s *Store) fetchPackage(ctx context.Context, name, suite string) (Commit, error) {
	title := name
	if suite != "" {
		title += " from " + suite
	}
	s.news.Send(progress.Event{Step: "fetch", State: progress.Started, Detail: title})
	c, err := s.fetch(ctx, name, suite)
	state := progress.Finished
	if err != nil {
		state = progress.Failed
	}
	s.news.Send(progress.Event{Step: "fetch", State: state, Detail: title})
	return c, err
}

func (s *Store) fetch(ctx context.Context, name, suite string) (Commit, error) {
	scratch, err := s.TempDir()
	if err != nil {
		return Commit{}, err
	}
	defer os.RemoveAll(scratch)
	var options []string
	if suite != "" {
		if options, err = s.otherSuite(ctx, suite, scratch); err != nil {
			return Commit{}, err
		}
		if _, err := run(ctx, scratch, "apt-get", append(options, "-q", "update")...); err != nil {
			return Commit{}, err
		}
	}
	// As root apt would step down to a user who may not write here.
	options = append(options, "-o", "APT::Sandbox::User=root", "-q", "download", name)
	if _, err := run(ctx, scratch, "apt-get", options...); err != nil {
		return Commit{}, err
	}
	debs, _ := filepath.Glob(filepath.Join(quoteGlob(scratch), "*.deb"))
	if len(debs) != 1 {
		return Commit{}, fmt.Errorf("apt-get left %d packages", len(debs))
	}
	said, err := run(ctx, "", "dpkg-deb", "--field", debs[0], "Version")
	if err != nil {
		return Commit{}, err
	}
	version := strings.TrimSpace(said)
	ref, packed := packageRef(name, version), packageTitle(name, version)
	return s.once(ctx, ref, packed, func(hold *os.File) (string, error) {
		return s.importDeb(ctx, hold, ref, packed, debs[0], name)
	})
}

// importDeb imports the sources that are in a package file. Whether the file
// is what the archive holds, apt has checked.
func (s *Store) importDeb(ctx context.Context, hold *os.File, ref, title, deb, name string) (id string, err error) {
	p, err := start(ctx, nil, "dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return "", err
	}
	defer func() {
		if closed := p.close(); err == nil {
			err = closed
		}
	}()
	outer := tar.NewReader(p)
	for {
		h, err := outer.Next()
		if err == io.EOF {
			return "", fmt.Errorf("the package has no usr/src/%s.tar.xz", name)
		}
		if err != nil {
			return "", err
		}
		if path.Clean(h.Name) == "usr/src/"+name+".tar.xz" && h.Typeflag == tar.TypeReg {
			return s.importPacked(ctx, hold, ref, title, outer, nil, "")
		}
	}
}

// otherSuite returns the options that make apt-get look at one suite of the
// configured Debian mirror, with all state in dir.
func (s *Store) otherSuite(ctx context.Context, suite, dir string) ([]string, error) {
	mirror, err := debianMirror(ctx, strings.HasSuffix(suite, "-security"))
	if err != nil {
		return nil, err
	}
	keyring := ""
	for _, k := range s.host.keyrings {
		if _, err := os.Stat(k); err == nil {
			keyring = k
			break
		}
	}
	if keyring == "" {
		return nil, errors.New("the Debian archive's keys are not there (package debian-archive-keyring)")
	}
	list := filepath.Join(dir, "suite.list")
	line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror, suite)
	if err := os.WriteFile(list, []byte(line), 0o666); err != nil {
		return nil, cannotWrite(list, err)
	}
	lists, cached := filepath.Join(dir, "lists"), filepath.Join(dir, "cache")
	for _, d := range []string{filepath.Join(lists, "partial"), filepath.Join(cached, "archives", "partial")} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			return nil, cannotWrite(d, err)
		}
	}
	return []string{
		"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + lists, "-o", "Dir::Cache=" + cached,
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none",
	}, nil
}

// debianMirror returns the mirror that apt is configured for. Security updates
// have one of their own.
func debianMirror(ctx context.Context, security bool) (string, error) {
	said, err := run(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)|$(CODENAME)|$(ORIGIN)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(said) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) == 3 && f[2] == "Debian" && strings.HasSuffix(f[1], "-security") == security {
			return f[0], nil
		}
	}
	return "", errors.New("apt is configured for no Debian mirror to ask for it")
}

// run runs a program of the system and returns what it printed; the error has
// what it said on its standard error.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &said
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		if words := strings.TrimSpace(said.String()); words != "" {
			return "", fmt.Errorf("%s: %s", name, words)
		}
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return out.String(), nil
}
