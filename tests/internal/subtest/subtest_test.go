// SPDX-License-Identifier: GPL-2.0-only

package subtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The runner is about tests that fail, so it is run in a child process:
// childCases are what TestChild runs there, chosen by envCase.
const (
	envCase = "SUBTEST_CASE"
	envLog  = "SUBTEST_LOG"
)

var (
	kept     []*os.File
	objectID int
)

// leak opens a file and forgets it.
func leak(*testing.T) {
	_, _ = os.Open(os.DevNull)
}

// oneMoreEachTime is a kernel in which every look finds one more object.
func oneMoreEachTime() (map[string]bool, error) {
	objectID++
	return map[string]bool{fmt.Sprintf("map id %d", objectID): true}, nil
}

var childCases = map[string]struct {
	tests   []Test
	objects func() (map[string]bool, error)
	noLog   bool
	// What the parent must see: the result, and text in the output.
	fails bool
	says  string
	// log is what must be in the kernel log, in this order.
	log []string
}{
	"clean": {
		tests: []Test{
			{"first one", func(t *testing.T) {
				f, err := os.Open(os.DevNull)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
			}},
			{"second", func(*testing.T) {}},
		},
		log: []string{
			"<6>patchbay: start suite/TestChild/first_one",
			"<6>patchbay: end suite/TestChild/first_one",
			"<6>patchbay: start suite/TestChild/second",
			"<6>patchbay: end suite/TestChild/second",
		},
	},
	"descriptor": {
		tests: []Test{{"leaks", leak}},
		fails: true,
		says:  "left behind 1 file descriptors:",
		log:   []string{"<6>patchbay: start suite/TestChild/leaks", "<6>patchbay: end suite/TestChild/leaks"},
	},
	"descriptor of the poller": {
		tests: []Test{{"pipe", func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, r)
			w.Close()
		}}},
		fails: true,
		says:  "-> pipe:[",
		log:   []string{"<6>patchbay: start suite/TestChild/pipe", "<6>patchbay: end suite/TestChild/pipe"},
	},
	"object": {
		tests:   []Test{{"leaks", func(*testing.T) {}}},
		objects: oneMoreEachTime,
		fails:   true,
		says:    "left behind 1 BPF objects after",
		log:     []string{"<6>patchbay: start suite/TestChild/leaks", "<6>patchbay: end suite/TestChild/leaks"},
	},
	"fatal": {
		tests: []Test{{"gives up", func(t *testing.T) { t.Fatal("cannot go on") }}},
		fails: true,
		says:  "cannot go on",
		log:   []string{"<6>patchbay: start suite/TestChild/gives_up", "<6>patchbay: end suite/TestChild/gives_up"},
	},
	"panic": {
		tests: []Test{{"panics", func(*testing.T) { panic("oh") }}},
		fails: true,
		says:  "panic: oh",
		log:   []string{"<6>patchbay: start suite/TestChild/panics", "<6>patchbay: end suite/TestChild/panics"},
	},
	"no kernel log": {
		tests: []Test{{"unmarked", func(*testing.T) { fmt.Println("the body ran") }}},
		noLog: true,
		fails: true,
		says:  "mark the start in the kernel log",
	},
}

func TestChild(t *testing.T) {
	c, ok := childCases[os.Getenv(envCase)]
	if !ok {
		return
	}
	log := os.Getenv(envLog)
	r := runner{suite: "suite", objects: c.objects, mark: func(record string) error {
		if c.noLog {
			return errors.New("no such device")
		}
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, record)
		return errors.Join(err, f.Close())
	}}
	r.run(t, c.tests)
}

func TestRunner(t *testing.T) {
	for name, c := range childCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "kmsg")
			out, err := runChild(t, "TestChild", envCase+"="+name, envLog+"="+log, envScale+"=0.01")
			if failed := err != nil; failed != c.fails {
				t.Fatalf("failed is %v, want %v:\n%s", failed, c.fails, out)
			}
			if !strings.Contains(out, c.says) {
				t.Errorf("does not say %q:\n%s", c.says, out)
			}
			if strings.Contains(out, "the body ran") {
				t.Errorf("ran although its start could not be marked:\n%s", out)
			}
			b, err := os.ReadFile(log)
			if err != nil && !(c.noLog && errors.Is(err, os.ErrNotExist)) {
				t.Fatal(err)
			}
			records := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
			if !c.noLog && !slices.Equal(records, c.log) {
				t.Errorf("kernel log:\n%s\nwant:\n%s", b, strings.Join(c.log, "\n"))
			}
		})
	}
}

// TestSuite is what TestOutsideGuest runs in a child process.
func TestSuite(t *testing.T) {
	if os.Getenv(envCase) != "suite" {
		return
	}
	Run(t, []Test{{"never runs here", func(*testing.T) { fmt.Println("the body ran") }}})
}

func TestOutsideGuest(t *testing.T) {
	for _, c := range []struct {
		name, env, says string
		fails           bool
	}{
		{"skips", envGuest + "=", "needs a patchbay guest: run `make vmtest`", false},
		{"lists", envList + "=1", "\npatchbay-list: TestSuite/never_runs_here\n", false},
		{"needs a suite", envGuest + "=1", "PATCHBAY_SUITE is not set", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, err := runChild(t, "TestSuite", envCase+"=suite", envSuite+"=", c.env)
			if failed := err != nil; failed != c.fails {
				t.Errorf("failed is %v, want %v", failed, c.fails)
			}
			if !strings.Contains(out, c.says) || strings.Contains(out, "the body ran") {
				t.Errorf("want %q and no run:\n%s", c.says, out)
			}
		})
	}
}

// runChild runs one test of this binary in a child process.
func runChild(t *testing.T, test string, env ...string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.v", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), err
}

func TestListedNamesAreTheRealOnes(t *testing.T) {
	tests := []Test{{Name: "plain"}, {Name: "with some  spaces"}, {Name: "tab\tand bell\a"}, {Name: "Grüße \u2028 \xff"}}
	var want bytes.Buffer
	for _, test := range tests {
		t.Run(test.Name, func(inner *testing.T) {
			fmt.Fprintf(&want, "patchbay-list: %s\n", inner.Name())
		})
	}
	var got bytes.Buffer
	if err := list(&got, t.Name(), tests); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() {
		t.Errorf("listed:\n%swant:\n%s", &got, &want)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		names []string
		ok    bool
	}{
		{[]string{"a", "b c"}, true},
		{[]string{"b c", "b_c"}, false},
		{[]string{""}, false},
		{[]string{"a/b"}, false},
	} {
		var tests []Test
		for _, name := range c.names {
			tests = append(tests, Test{Name: name})
		}
		if err := validate(tests); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.names, err)
		}
	}
}

func TestScale(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": time.Second, "1": time.Second, "2.5": 2500 * time.Millisecond, "1e30": 1<<63 - 1,
	} {
		t.Setenv(envScale, value)
		if got := Scale(time.Second); got != want {
			t.Errorf("scale %q: %v, want %v", value, got, want)
		}
	}
	for _, value := range []string{"0", "-1", "NaN", "Inf", "fast"} {
		t.Setenv(envScale, value)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("scale %q is accepted", value)
				}
			}()
			Scale(time.Second)
		}()
	}
}
