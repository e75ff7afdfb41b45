// SPDX-License-Identifier: MIT

package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// TestLogOrder scatters three guests' records over the cell and its tests; the
// text of each record says where it belongs.
func TestLogOrder(t *testing.T) {
	kmsg := func(seq uint64, text string) klog.Record {
		return klog.Record{Seq: seq, Level: 6, Time: time.Duration(seq) * time.Second, Text: text}
	}
	console := func(at int, text string) klog.Record {
		return klog.Record{Level: klog.LevelUnknown, Time: time.Duration(at) * time.Second, Text: text}
	}
	c := verdict.Cell{
		ID: "c", Boots: 3, Outcome: verdict.Crash,
		Log: []klog.Record{
			kmsg(0, "1a"), kmsg(1, "1b"), kmsg(4, "1e"), console(9, "1j"), console(0, "1k"),
			kmsg(0, "2a"), kmsg(3, "2d"),
			console(1, "3b"),
		},
		Tests: []verdict.Test{
			{Suite: "s", Name: "A", Log: []klog.Record{kmsg(2, "1c"), kmsg(3, "1d")}},
			{Suite: "s", Name: "crashes", Log: []klog.Record{kmsg(5, "1f"), kmsg(8, "1i"), console(6, "1g"), console(7, "1h")}},
			{Suite: "s", Name: "none"},
			{Suite: "s", Name: "B", Log: []klog.Record{kmsg(1, `2b\x0a2c`)}},
			// It collides with nothing of the first guest, but comes later.
			{Suite: "s", Name: "C", Log: []klog.Record{kmsg(6, "2e")}},
		},
	}
	var got strings.Builder
	if err := WriteLogs(&got, &verdict.Run{Cells: []verdict.Cell{c}}); err != nil {
		t.Fatal(err)
	}
	want := `# kernel log of c: crash
# guest 1
# outside any test
[    0.000000] 1a
[    1.000000] 1b
# s/A
[    2.000000] 1c
[    3.000000] 1d
# outside any test
[    4.000000] 1e
# s/crashes
[    5.000000] 1f
[    6.000000] 1g
[    7.000000] 1h
[    8.000000] 1i
# outside any test
[    9.000000] 1j
[    0.000000] 1k
# guest 2
# outside any test
[    0.000000] 2a
# s/B
[    1.000000] 2b
[    1.000000] 2c
# outside any test
[    3.000000] 2d
# s/C
[    6.000000] 2e
# guest 3
# outside any test
[    1.000000] 3b
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
