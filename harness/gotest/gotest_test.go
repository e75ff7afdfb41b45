// SPDX-License-Identifier: MIT

package gotest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample builds the test binary of testdata/sample.
func sample(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "sample.test")
	out, err := exec.Command("go", "test", "-c", "-o", binary, "./testdata/sample").CombinedOutput()
	if err != nil {
		t.Fatalf("building the sample: %v\n%s", err, out)
	}
	return binary
}

func collect(stream []byte, chunk int) []string {
	var events []string
	p := NewParser(func(e Event) {
		switch e.Kind {
		case Start:
			events = append(events, "start "+e.Test)
		case End:
			events = append(events, fmt.Sprintf("end %s %d", e.Test, e.Result))
		}
	})
	for len(stream) > 0 {
		n := min(chunk, len(stream))
		_, _ = p.Write(stream[:n])
		stream = stream[n:]
	}
	_ = p.Close()
	return events
}

// TestAgainstConverter compares starts, ends and results with what the Go
// distribution's own converter makes of the same stream.
func TestAgainstConverter(t *testing.T) {
	binary := sample(t)
	for _, env := range []string{"PANIC=", "PANIC=1"} {
		cmd := exec.Command(binary, "-test.v=test2json")
		cmd.Env = append(os.Environ(), env)
		stream, _ := cmd.Output()

		convert := exec.Command("go", "tool", "test2json")
		convert.Stdin = bytes.NewReader(stream)
		converted, err := convert.Output()
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		results := map[string]Result{"pass": Pass, "fail": Fail, "skip": Skip}
		for _, line := range strings.Split(strings.TrimSpace(string(converted)), "\n") {
			var e struct{ Action, Test string }
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Test == "" {
				continue
			}
			if e.Action == "run" {
				want = append(want, "start "+e.Test)
			} else if r, ok := results[e.Action]; ok {
				want = append(want, fmt.Sprintf("end %s %d", e.Test, r))
			}
		}
		if env == "PANIC=1" {
			// The converter holds a report back for output that may
			// follow, and drops it where the closing line is missing.
			want = append(want, "end TestPanics 2")
		}
		for _, chunk := range []int{1, 7, 1 << 20} {
			got := collect(stream, chunk)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %d bytes at a time (-converter +ours):\n%s", env, chunk, diff)
			}
		}
	}
}

func TestOutputIsComplete(t *testing.T) {
	stream := "lead\n\x16=== RUN   TestA\nhalf\x16--- PASS: TestA (0.01s)\n\x16nonsense\n" +
		strings.Repeat("y", 3*maxLine) + "\x16=== RUN   TestB\nunfinished"
	got := map[string]string{}
	p := NewParser(func(e Event) {
		if e.Kind == Output {
			got[e.Test] += string(e.Text)
		}
	})
	_, _ = p.Write([]byte(stream))
	_ = p.Close()
	want := map[string]string{
		"":      "lead\n\x16nonsense\n" + strings.Repeat("y", 3*maxLine),
		"TestA": "half", "TestB": "unfinished",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestPatternSelectsExactly(t *testing.T) {
	binary := sample(t)
	for _, names := range [][]string{
		{"TestGood/with_space"},
		{"TestGood/a.b(c)", "TestBad/fails", "TestParallel"},
		{"TestGood/deep/deeper"},
		{"TestBad/skips", "TestBad/shouts"},
	} {
		stream, _ := exec.Command(binary, "-test.v=test2json", "-test.run", Pattern(names)).Output()
		ran := map[string]bool{}
		for _, e := range collect(stream, 1<<20) {
			if name, ok := strings.CutPrefix(e, "start "); ok {
				ran[name] = true
			}
		}
		for name := range ran {
			wanted := false
			for _, n := range names {
				wanted = wanted || n == name || strings.HasPrefix(n, name+"/") || strings.HasPrefix(name, n+"/")
			}
			if !wanted {
				t.Errorf("%q selected %q, which nobody asked for", Pattern(names), name)
			}
		}
		for _, n := range names {
			if !ran[n] {
				t.Errorf("%q did not select %q", Pattern(names), n)
			}
		}
	}
}

func FuzzParser(f *testing.F) {
	f.Add([]byte("\x16=== RUN   TestA\nx\x16--- PASS: TestA (0.01s)\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		kept := 0
		p := NewParser(func(e Event) { kept += len(e.Text) })
		_, _ = p.Write(stream)
		_ = p.Close()
		if kept > len(stream) {
			t.Fatalf("%d bytes of output from %d bytes of input", kept, len(stream))
		}
	})
}
