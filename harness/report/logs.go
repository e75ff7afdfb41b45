// SPDX-License-Identifier: MIT

package report

import (
	"bufio"
	"fmt"
	"io"

	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// WriteLogs writes the kernel log of every cell in the kernel's format. Lines
// that begin with # say which guest, which test, and where the kernel
// complained; no record can look like one of them.
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
		if len(c.KernelLog) == 0 {
			b.WriteString("# it has no records\n")
		}
		var last *verdict.LogLine
		for i := range c.KernelLog {
			l := &c.KernelLog[i]
			if last == nil || l.Boot != last.Boot {
				fmt.Fprintf(b, "# guest %d\n", l.Boot)
				last = nil
			}
			if last == nil || l.Suite != last.Suite || l.Test != last.Test {
				if l.Test == "" {
					b.WriteString("# outside any test\n")
				} else {
					fmt.Fprintf(b, "# %s/%s\n", klog.Escape(l.Suite), klog.Escape(l.Test))
				}
			}
			last = l
			for _, s := range l.Splats {
				fmt.Fprintf(b, "# splat (%s): %s", klog.Escape(s.Kind), klog.Escape(s.Title))
				if s.Allowed != "" {
					fmt.Fprintf(b, "; allowed: %s", klog.Escape(s.Allowed))
				}
				if s.Incomplete {
					b.WriteString("; the report is incomplete")
				}
				b.WriteByte('\n')
			}
			for _, text := range recordLines(&l.Record) {
				b.WriteString(text)
				b.WriteByte('\n')
			}
		}
	}
	return b.Flush()
}
