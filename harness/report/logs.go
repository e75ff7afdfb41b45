// SPDX-License-Identifier: MIT

package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"time"

	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// WriteLogs writes the kernel log of every cell in the kernel's order and
// format. Lines that begin with # say which guest, which test, and where the
// kernel complained; no record can look like one of them.
func WriteLogs(w io.Writer, run *verdict.Run) error {
	b := bufio.NewWriter(w)
	for i := range run.Cells {
		c := &run.Cells[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "# kernel log of %s: %s", klog.Escape(c.ID), c.Outcome)
		if c.Kernel != "" {
			fmt.Fprintf(b, ", kernel %s", klog.Escape(c.Kernel))
		}
		b.WriteByte('\n')
		lines := arrange(c)
		if len(lines) == 0 {
			b.WriteString("# it has no records\n")
		}
		boot, owner := 0, "\x00"
		for i := range lines {
			l := &lines[i]
			if l.boot != boot {
				boot, owner = l.boot, "\x00"
				fmt.Fprintf(b, "# guest %d\n", boot)
			}
			if l.owner != owner {
				owner = l.owner
				if owner == "" {
					b.WriteString("# outside any test\n")
				} else {
					fmt.Fprintf(b, "# %s\n", owner)
				}
			}
			for _, s := range l.splats {
				fmt.Fprintf(b, "# splat (%s): %s", klog.Escape(s.Kind), klog.Escape(s.Title))
				if s.Allowed != "" {
					fmt.Fprintf(b, "; allowed: %s", klog.Escape(s.Allowed))
				}
				if s.Incomplete {
					b.WriteString("; the report is incomplete")
				}
				b.WriteByte('\n')
			}
			for _, text := range recordLines(l.record) {
				b.WriteString(text)
				b.WriteByte('\n')
			}
		}
	}
	return b.Flush()
}

// logLine is a record with what is known about its place.
type logLine struct {
	record *klog.Record
	owner  string
	splats []klog.Splat
	boot   int
	// seq is the kernel's number, or that of the record which it follows.
	seq     uint64
	console bool
}

// arrange puts the records of a cell and its tests into one order. The values
// do not name the guest of a record, but every guest counts from 0 again, and
// tests run in the order in which they are listed.
func arrange(c *verdict.Cell) []logLine {
	boots := 1
	taken := map[int]map[uint64]bool{}
	var all []logLine
	add := func(log []klog.Record, found []klog.Splat, owner string, boot func(r *klog.Record) int) {
		for i := range log {
			r := &log[i]
			l := logLine{record: r, owner: owner, boot: boot(r), seq: r.Seq, console: r.FromConsole()}
			if !l.console {
				if taken[l.boot] == nil {
					taken[l.boot] = map[uint64]bool{}
				}
				taken[l.boot][r.Seq] = true
			}
			for _, s := range found {
				if s.First == i {
					l.splats = append(l.splats, s)
				}
			}
			all = append(all, l)
		}
	}

	var last *klog.Record
	var next uint64
	add(c.Log, c.Splats, "", func(r *klog.Record) int {
		switch {
		case last == nil:
		case r.FromConsole():
			// Two CPUs may print a little out of order.
			if r.Time != 0 && r.Time+time.Second < last.Time {
				boots, next = boots+1, 0
			}
		case r.Seq < next:
			boots, next = boots+1, 0
		}
		last = r
		if !r.FromConsole() {
			next = r.Seq + 1
		}
		return boots
	})
	boot := 1
	for i := range c.Tests {
		t := &c.Tests[i]
		clash := func() bool {
			return slices.ContainsFunc(t.Log, func(r klog.Record) bool { return !r.FromConsole() && taken[boot][r.Seq] })
		}
		for boot < max(boots, c.Boots) && clash() {
			boot++
		}
		add(t.Log, t.Splats, fullName(t), func(*klog.Record) int { return boot })
	}
	place(all)
	return all
}

// place sorts by guest and number. A record from the console goes after the
// last one that is not younger; without a time it is among the last words.
func place(all []logLine) {
	byBoot := map[int][]logLine{}
	for _, l := range all {
		if !l.console {
			byBoot[l.boot] = append(byBoot[l.boot], l)
		}
	}
	for _, numbered := range byBoot {
		slices.SortStableFunc(numbered, func(a, b logLine) int { return cmp.Compare(a.seq, b.seq) })
	}
	for i := range all {
		l := &all[i]
		if !l.console {
			continue
		}
		l.seq = math.MaxUint64
		if numbered := byBoot[l.boot]; l.record.Time != 0 {
			at := sort.Search(len(numbered), func(i int) bool { return numbered[i].record.Time > l.record.Time })
			l.seq = 0
			if at > 0 {
				l.seq = numbered[at-1].seq
			}
		}
	}
	slices.SortStableFunc(all, func(a, b logLine) int {
		order := 0
		if a.console != b.console {
			order = -1
			if a.console {
				order = 1
			}
		}
		return cmp.Or(cmp.Compare(a.boot, b.boot), cmp.Compare(a.seq, b.seq), order)
	})
}
