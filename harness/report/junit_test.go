// SPDX-License-Identifier: MIT

package report

import (
	"encoding/xml"
	"strings"
	"testing"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

func parseJUnit(t *testing.T, run *verdict.Run) junit.Testsuites {
	t.Helper()
	var all junit.Testsuites
	if err := xml.Unmarshal([]byte(render(t, "junit.xml", run)), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestJUnitIsGreenOnlyWithExitCode0 takes every way in which a run can be bad,
// and the good ones.
func TestJUnitIsGreenOnlyWithExitCode0(t *testing.T) {
	cell := func(c verdict.Outcome, tests ...verdict.Outcome) *verdict.Run {
		run := &verdict.Run{Cells: []verdict.Cell{{ID: "c", Outcome: c}}}
		for _, o := range tests {
			run.Cells[0].Tests = append(run.Cells[0].Tests, verdict.Test{Suite: "s", Name: "T", Outcome: o})
		}
		run.ExitCode = run.Exit()
		return run
	}
	runs := map[string]*verdict.Run{
		"no cells":    {ExitCode: fault.ExitHarness},
		"interrupted": cell(verdict.Pass, verdict.Pass),
		"good":        cell(verdict.Pass, verdict.Pass, verdict.Skip),
		"skipped":     cell(verdict.Skip, verdict.Skip),
		"failure":     cell(verdict.Pass, verdict.Pass),
		"splat":       cell(verdict.Splat, verdict.Pass),
	}
	runs["interrupted"].ExitCode = fault.ExitHarness
	runs["failure"].Cells[0].Failure = &verdict.Failure{Blame: fault.Configuration, Message: "not so"}
	runs["failure"].ExitCode = runs["failure"].Exit()
	runs["splat"].Cells[0].Splats = []klog.Splat{{Kind: "kasan", Title: "BUG: KASAN"}}
	for _, o := range verdict.Outcomes() {
		runs["cell "+o.String()] = cell(o, verdict.Pass)
		if o < verdict.Boot {
			runs["test "+o.String()] = cell(o, verdict.Pass, o)
		}
	}
	for name, run := range runs {
		all := parseJUnit(t, run)
		if green := all.Failures+all.Errors == 0; green != (run.ExitCode == 0) {
			t.Errorf("%s: exit code %d, yet %d failures and %d errors", name, run.ExitCode, all.Failures, all.Errors)
		}
		if all.Tests == 0 {
			t.Errorf("%s: it has no test case", name)
		}
		// A test is not counted twice because its cell is as bad as it.
		if strings.HasPrefix(name, "test ") && all.Failures+all.Errors > 1 {
			t.Errorf("%s: %d failures, %d errors for one", name, all.Failures, all.Errors)
		}
	}
	all := parseJUnit(t, runs["failure"])
	if last := all.Suites[len(all.Suites)-1].Testcases[0]; last.Error == nil || last.Error.Message != "not so" {
		t.Errorf("the cell's failure is not shown: %+v", last)
	}
	both := cell(verdict.Splat, verdict.Splat)
	both.Cells[0].Splats = runs["splat"].Cells[0].Splats
	if all := parseJUnit(t, both); all.Failures != 1 || all.Errors != 1 {
		t.Error("a splat outside any test is hidden by one in a test")
	}
	if all := parseJUnit(t, cell(verdict.Pass)); all.Errors != 1 {
		t.Error("a cell that passed without any test is green")
	}
}

func TestJUnitMapping(t *testing.T) {
	all := parseJUnit(t, sample(t))
	got := map[string]string{}
	for _, s := range all.Suites {
		for _, tc := range s.Testcases {
			kind, text := "none", ""
			switch {
			case tc.Failure != nil:
				kind, text = "failure "+tc.Failure.Type, tc.Failure.Data
			case tc.Error != nil:
				kind, text = "error "+tc.Error.Type, tc.Error.Data
			case tc.Skipped != nil:
				kind = "skipped"
			}
			got[s.Name+" "+tc.Name[strings.LastIndexByte(tc.Name, '/')+1:]] = kind + " " + text
		}
	}
	const first = "v6.12+sockmap-cpu-affinity/default/"
	for name, want := range map[string][]string{
		first + "sockmapbasic sockmap_copy":                 {"none"},
		first + "sockmapbasic sockmap_skb_verdict_fionread": {"failure fail", "data_test.go:131"},
		first + "sockmapbasic sockmap_skb_verdict_peek":     {"failure splat", "Freed by task 30", "Memory state"},
		first + "sockmapbasic TestPanics":                   {"error timeout", "deadline"},
		first + "cpuaffinity verdict_redirect":              {"skipped"},
		first + "cpuaffinity backlog":                       {"error crash", "RIP: 0010:0x0", "Kernel panic"},
		first + "cpuaffinity hotplug":                       {"error lost"},
		first + "cpuaffinity many":                          {"error notrun"},
		"v6.12+bad/default cell":                            {"error boot", "kernel BUG at net/core/skbuff.c:207!"},
		"v6.12+broken/default cell":                         {"error build", "net/core/skmsg.c:1234:9: error"},
		"v6.12/default cell":                                {"error infra", "next: bin/setup"},
	} {
		for _, part := range want {
			if !strings.Contains(got[name], part) {
				t.Errorf("%s: it lacks %q: %q", name, part, got[name])
			}
		}
	}
}
