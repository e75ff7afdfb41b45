// SPDX-License-Identifier: MIT

package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// TestTrim holds what is shown of every splat that klog knows against what a
// reader needs: the headline, and frames if there are any.
func TestTrim(t *testing.T) {
	paths, _ := filepath.Glob(filepath.Join("..", "klog", "testdata", "splats", "*.log"))
	if len(paths) < 20 {
		t.Fatalf("only %d splats", len(paths))
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		log, err := klog.ParseConsole(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range klog.Detect(log) {
			records := s.Records(log)
			shown, total := trim(records)
			if total != len(records) {
				t.Errorf("%s: %d of %d lines were looked at", path, total, len(records))
			}
			if len(shown) > maxLead+maxTrace+8 {
				t.Errorf("%s: %d lines are shown", path, len(shown))
			}
			if !slices.Contains(shown, s.Line) {
				t.Errorf("%s: the headline %q is missing in\n%s", path, s.Line, strings.Join(shown, "\n"))
			}
			trace := slices.ContainsFunc(records, func(r klog.Record) bool { return r.Text == "Call Trace:" })
			frame := func(line string) bool { return strings.HasPrefix(line, " ") && strings.Contains(line, "+0x") }
			if trace && !slices.ContainsFunc(shown, frame) {
				t.Errorf("%s: no frame in\n%s", path, strings.Join(shown, "\n"))
			}
			for _, line := range shown {
				if strings.HasPrefix(line, "RAX:") || strings.HasPrefix(line, "Code:") || strings.HasPrefix(line, "Modules linked in:") {
					t.Errorf("%s: %q is shown", path, line)
				}
			}
		}
	}
}

// TestTextFitsItsWidth: what patchbay itself says is wrapped; what others said,
// which is indented further, and the verdict keep their lines.
func TestTextFitsItsWidth(t *testing.T) {
	run := good(t)
	run.Cells[0].Tests[2].Reason = strings.Repeat("because of something ", 20) + strings.Repeat("漢字漢字漢 ", 8)
	for _, width := range []int{60, 80, 120} {
		var b strings.Builder
		if err := WriteText(&b, run, TextOptions{Width: width}); err != nil {
			t.Fatal(err)
		}
		wrapped := 0
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if !strings.Contains(line, "because") && !strings.Contains(line, "漢") && !strings.HasPrefix(line, "phases") {
				continue
			}
			if wrapped++; columns(line) > width {
				t.Errorf("%d columns, want at most %d: %q", columns(line), width, line)
			}
		}
		if wrapped < 400/width {
			t.Errorf("only %d lines of prose at width %d:\n%s", wrapped, width, b.String())
		}
	}
}

func TestTextShowsPassingOutputIfVerbose(t *testing.T) {
	run := good(t)
	if text := render(t, "report.txt", run); strings.Contains(text, "4 of 4") {
		t.Errorf("the output of a passing test is shown:\n%s", text)
	}
	if text := render(t, "verbose.txt", run); !strings.Contains(text, "4 of 4") {
		t.Errorf("the output of a passing test is not shown:\n%s", text)
	}
}

func TestTextLastLine(t *testing.T) {
	forty := &verdict.Run{Duration: 12300 * time.Millisecond, Cells: []verdict.Cell{{
		ID: "v6.12+sockmap-cpu-affinity/default", Outcome: verdict.Pass, Kernel: "6.12.117", Accel: "tcg", CPUs: 4,
	}}}
	for i := range 45 {
		one := verdict.Test{Suite: "s", Name: fmt.Sprintf("T/%d", i), Outcome: verdict.Pass}
		if i >= 43 {
			one.Outcome, one.Reason = verdict.Skip, "no"
		}
		forty.Cells[0].Tests = append(forty.Cells[0].Tests, one)
	}
	interrupted := *forty
	interrupted.ExitCode = fault.ExitHarness
	for want, run := range map[string]*verdict.Run{
		"PASS v6.12+sockmap-cpu-affinity/default: 43 passed, 2 skipped in 12.3 s (kernel 6.12.117, TCG, 4 CPUs)\n": forty,
		"\nexit code 4: the harness or the host failed, or the run was interrupted\n":                              &interrupted,
		"exit code 2: usage or configuration\n":                                                                    {ExitCode: fault.ExitConfiguration},
	} {
		if text := render(t, "report.txt", run); !strings.HasSuffix(text, want) {
			t.Errorf("it does not end in %q:\n%s", want, text)
		}
	}
}

// TestCutsAreSaid: nothing that is left out is left out silently.
func TestCutsAreSaid(t *testing.T) {
	var output strings.Builder
	log := []klog.Record{}
	for i := range 100 {
		fmt.Fprintf(&output, "output %d\n", i)
		log = append(log, klog.Record{Seq: uint64(i), Text: fmt.Sprintf("record %d", i)})
	}
	run := &verdict.Run{ExitCode: 1, Cells: []verdict.Cell{{ID: "c", Outcome: verdict.Fail, Tests: []verdict.Test{{
		Suite: "s", Name: "T", Outcome: verdict.Fail, Reason: strings.Repeat("x", 1500), Output: strings.Repeat("y", 1<<20) + "\n" + output.String(), Log: log,
	}}}}}
	text := render(t, "report.txt", run)
	for _, want := range []string{"[61 earlier lines are in results.json]", "output 99\n", "[88 earlier lines are in kernel.log]", "record 99\n", "[500 more characters]"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "output 59\n") || strings.Contains(text, "record 87\n") {
		t.Errorf("it is not cut:\n%s", text)
	}
}
