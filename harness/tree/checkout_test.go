// SPDX-License-Identifier: MIT

package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

// onDisk returns the files below a folder as content returns those of a commit.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if d.Type() == fs.ModeSymlink {
			to, err := os.Readlink(path)
			files[name] = "120000 " + to
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := "100644 "
		if info.Mode()&0o100 != 0 {
			mode = "100755 "
		}
		text, err := os.ReadFile(path)
		files[name] = mode + string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// twoStates makes a store with two commits that differ in every way.
func twoStates(t *testing.T) (s *Store, first, second Commit) {
	t.Helper()
	s = open(t)
	from := busy(t)
	return s, resolve(t, s, Source{Dir: from, Rev: "HEAD"}), resolve(t, s, Source{Dir: from})
}

// checkout makes a folder with the commit.
func checkout(t *testing.T, s *Store, c Commit) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a checkout")
	if err := s.Checkout(context.Background(), c, dir); err != nil {
		t.Fatal(err)
	}
	same(t, s, c, dir)
	return dir
}

// same checks that a folder holds exactly the commit.
func same(t *testing.T, s *Store, c Commit, dir string) {
	t.Helper()
	if diff := cmp.Diff(content(t, s, c), onDisk(t, dir)); diff != "" {
		t.Errorf("the folder is not the commit:\n%s", diff)
	}
}

func TestCheckoutTouchesOnlyWhatDiffers(t *testing.T) {
	s, first, second := twoStates(t)
	dir := checkout(t, s, first)
	was := look(t, dir)
	if err := s.Checkout(context.Background(), first, dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, look(t, dir)); diff != "" {
		t.Errorf("the same commit again wrote:\n%s", diff)
	}
	if err := s.Checkout(context.Background(), second, dir); err != nil {
		t.Fatal(err)
	}
	same(t, s, second, dir)
	now := look(t, dir)
	for _, name := range []string{"unchanged.c", "Makefile", "Kconfig"} {
		if path := filepath.Join(dir, name); was[path] != now[path] {
			t.Errorf("%s was written", name)
		}
	}
	if err := s.Checkout(context.Background(), first, dir); err != nil {
		t.Fatal(err)
	}
	same(t, s, first, dir)
}

// Whatever state a folder was left in, the next checkout mends it, and files
// that are right keep their times, on which a build depends.
func TestCheckoutMends(t *testing.T) {
	s, first, second := twoStates(t)
	for name, spoil := range map[string]func(dir string) error{
		"index lost":  func(dir string) error { return os.Remove(dir + ".index") },
		"index empty": func(dir string) error { return os.WriteFile(dir+".index", nil, 0o666) },
		"index garbage": func(dir string) error {
			return os.WriteFile(dir+".index", []byte(strings.Repeat("no index", 99)), 0o666)
		},
		"lock left": func(dir string) error { return os.WriteFile(dir+".index.lock", nil, 0o666) },
		"file changed": func(dir string) error {
			return os.WriteFile(dir+"/Kconfig", []byte("changed, and of another size\n"), 0o666)
		},
		"file lost":       func(dir string) error { return os.Remove(dir + "/Kconfig") },
		"file executable": func(dir string) error { return os.Chmod(dir+"/Kconfig", 0o755) },
		"file more":       func(dir string) error { return os.WriteFile(dir+"/net/more.o", []byte("x"), 0o666) },
		"folder more":     func(dir string) error { return os.MkdirAll(dir+"/more/.git/deep", 0o777) },
		"file for folder": func(dir string) error {
			if err := os.RemoveAll(dir + "/net"); err != nil {
				return err
			}
			return os.WriteFile(dir+"/net", nil, 0o666)
		},
		"folder for file": func(dir string) error {
			if err := os.Remove(dir + "/Kconfig"); err != nil {
				return err
			}
			return os.MkdirAll(dir+"/Kconfig/x", 0o777)
		},
		"link for file": func(dir string) error {
			if err := os.Rename(dir+"/Kconfig", dir+"/other"); err != nil {
				return err
			}
			return os.Symlink("other", dir+"/Kconfig")
		},
		// As killed between the files and the index.
		"index older than the files": func(dir string) error {
			if err := os.Remove(dir + ".index"); err != nil {
				return err
			}
			if err := os.WriteFile(dir+"/half", []byte("half"), 0o666); err != nil {
				return err
			}
			return os.Remove(dir + "/staged.c")
		},
		"everything lost but the index": func(dir string) error { return os.RemoveAll(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, to := range []Commit{first, second} {
				dir := checkout(t, s, first)
				before := look(t, dir)[filepath.Join(dir, "unchanged.c")]
				if err := spoil(dir); err != nil {
					t.Fatal(err)
				}
				if err := s.Checkout(context.Background(), to, dir); err != nil {
					t.Fatal(err)
				}
				same(t, s, to, dir)
				after := look(t, dir)[filepath.Join(dir, "unchanged.c")]
				if after != before && !strings.HasPrefix(name, "everything lost") {
					t.Errorf("a file that was right was written again")
				}
			}
		})
	}
}

// Git takes an index that ends early for one with empty entries. The files are
// right all the same.
func TestCheckoutCutIndex(t *testing.T) {
	s, first, _ := twoStates(t)
	dir := checkout(t, s, first)
	info, err := os.Stat(dir + ".index")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{100, info.Size() / 2, info.Size() - 1} {
		if err := os.Truncate(dir+".index", size); err != nil {
			t.Fatal(err)
		}
		write(t, dir, map[string]string{"Kconfig": "changed\n"})
		if err := s.Checkout(context.Background(), first, dir); err != nil {
			t.Fatal(err)
		}
		same(t, s, first, dir)
	}
}

func TestCheckoutTogether(t *testing.T) {
	s, first, second := twoStates(t)
	dir := checkout(t, s, first)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			c := first
			if i%2 == 0 {
				c = second
			}
			if err := s.Checkout(context.Background(), c, dir); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := s.Checkout(context.Background(), first, dir); err != nil {
		t.Fatal(err)
	}
	same(t, s, first, dir)
}

func TestCheckoutFails(t *testing.T) {
	s, first, second := twoStates(t)
	dir := checkout(t, s, first)

	stopped, stop := context.WithCancel(context.Background())
	stop()
	if err := s.Checkout(stopped, second, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// A lock that another holds is waited for, and no longer than asked.
	lock, err := lockFile(context.Background(), dir+".index.flock")
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	if err := s.Checkout(short, second, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	lock.Close()
	same(t, s, first, dir)

	// A user's repository that is no longer there.
	gone := second
	gone.Objects = []string{filepath.Join(t.TempDir(), "gone")}
	err = s.Checkout(context.Background(), gone, dir)
	faulty(t, err, fault.Harness, "checking out the sources to "+dir, second.Describe, "does not exist")

	inTheWay := file(t, "file", nil)
	err = s.Checkout(context.Background(), first, filepath.Join(inTheWay, "dir"))
	faulty(t, err, fault.Harness, inTheWay, "not a directory")
}
