// SPDX-License-Identifier: MIT

// Package report renders what verdict holds: files for machines, a text for
// people, and what happens while it happens. One renderer per file.
package report

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// WriteAll writes results.json, junit.xml and kernel.log into dir. Each of them
// appears complete or not at all, and one that fails does not stop the others.
func WriteAll(dir string, run *verdict.Run) error {
	var faults *multierror.Error
	for _, f := range []struct {
		name  string
		write func(io.Writer, *verdict.Run) error
	}{{resultsName, WriteJSON}, {"junit.xml", WriteJUnit}, {"kernel.log", WriteLogs}} {
		if err := writeFile(filepath.Join(dir, f.name), run, f.write); err != nil {
			faults = multierror.Append(faults, err)
		}
	}
	return faults.ErrorOrNil()
}

func writeFile(path string, run *verdict.Run, write func(io.Writer, *verdict.Run) error) error {
	dir, name := filepath.Split(path)
	temporary := filepath.Join(dir, fmt.Sprintf(".%s.%d", name, os.Getpid()))
	f, err := os.Create(temporary)
	if err == nil {
		err = write(f, run)
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			err = os.Rename(temporary, path)
		}
		if err != nil {
			os.Remove(temporary)
		}
	}
	if err != nil {
		return OutError("writing "+name, dir, err)
	}
	return nil
}

// OutError is the error for what cannot be written into the folder for results.
func OutError(doing, where string, err error) error {
	return &fault.Error{
		Blame: fault.Harness, Doing: doing, Subject: where, Err: err,
		Next: "check free space and permissions there, or choose another folder with --out",
	}
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// count says "1 record" or "2 records".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// longLine is where a line is cut, in characters.
const longLine = 1000

// safeLines splits text into lines that can be shown anywhere. What is cut of a
// huge one is said.
func safeLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		line = klog.Escape(strings.ReplaceAll(line, "\t", "    "))
		lines = append(lines, cutLine(line, longLine))
	}
	return lines
}

// cutLine keeps at most limit characters of a line, and says what it cut.
func cutLine(line string, limit int) string {
	if n := utf8.RuneCountInString(line); n > limit {
		runes := []rune(line)
		return fmt.Sprintf("%s [%d more characters]", string(runes[:limit]), n-limit)
	}
	return line
}

// short makes a name or a title fit for one line.
func short(s string) string { return cutLine(klog.Escape(s), longLine) }

// oneLine makes text fit for one line.
func oneLine(text string) string {
	var parts []string
	for _, line := range safeLines(text) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return cutLine(strings.Join(parts, " / "), longLine)
}

// recordLines is a record as the kernel prints it, a line for each that the
// message has.
func recordLines(r *klog.Record) []string {
	prefix := fmt.Sprintf("[%5d.%06d]", r.Time/time.Second, r.Time%time.Second/time.Microsecond)
	if r.Caller != "" {
		prefix += fmt.Sprintf("[%6s]", klog.Escape(r.Caller))
	}
	lines := textLines(r)
	for i, line := range lines {
		lines[i] = prefix + " " + line
	}
	return lines
}

// textLines is a record's message; /dev/kmsg writes a newline in it as \x0a.
func textLines(r *klog.Record) []string {
	lines := strings.Split(r.Text, `\x0a`)
	for i, line := range lines {
		lines[i] = klog.Escape(line)
	}
	return lines
}

// splat is a complaint with its report.
type splat struct {
	klog.Splat
	records []klog.Record
}

// splats splits the complaints in a log into those that count and those that
// the allow list covers.
func splats(found []klog.Splat, log []klog.Record) (bad, allowed []splat) {
	for _, s := range found {
		one := splat{s, s.Records(log)}
		if s.Allowed == "" {
			bad = append(bad, one)
		} else {
			allowed = append(allowed, one)
		}
	}
	return bad, allowed
}

// fullName is how --test takes it.
func fullName(t *verdict.Test) string {
	return short(t.Suite + "/" + t.Name)
}

// suitesOf lists the suites of a cell in the order in which they appear.
func suitesOf(c *verdict.Cell) []string {
	var names []string
	for i := range c.Tests {
		if s := c.Tests[i].Suite; !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}
