// SPDX-License-Identifier: MIT

package kbuild

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"patchbay/harness/internal/fault"
)

const (
	// maxComplaints and maxComplaintLines bound what an error shows of a log.
	maxComplaints     = 3
	maxComplaintLines = 12
	// maxWidth cuts lines of a log that are long beyond reading, such as a
	// compiler's command line.
	maxWidth = 240
)

// complaint is one error in a log.
type complaint struct {
	// where is file:line, or the target that could not be made.
	where string
	lines []string
}

var (
	// compilerError is gcc's, clang's, the preprocessor's or the assembler's.
	compilerError = regexp.MustCompile(`^([^\s:][^:]*):(\d+):(?:\d+:)? (?:fatal )?[Ee]rror: `)
	// compilerContext precedes an error: where it was included from, and the
	// function it is in.
	compilerContext = regexp.MustCompile(`^In file included from |^ +from \S+:\d+|^[^\s:][^:]*: (?:In function|At top level)`)
	// compilerDetail follows it: the source line, the caret, notes.
	compilerDetail = regexp.MustCompile(`^ *\d* *\||^[^\s:][^:]*:\d+:(?:\d+:)? note: |^ +from \S+:\d+|^compilation terminated`)
	snippet        = regexp.MustCompile(`^ *\d* *\|`)
	linkerError    = regexp.MustCompile(`^(?:\S*ld(?:\.\w+)?: )?(\S+?):.* (?:undefined reference to|multiple definition of) |^ld\.lld: error: |^(?:\S*/)?(?:ld|collect2)(?:\.\w+)?: (?:error: |cannot find |.*: (?:file not recognized|file truncated))`)
	linkerContext  = regexp.MustCompile("^\\S*ld(?:\\.\\w+)?: \\S+: in function [`']")
	otherError     = regexp.MustCompile(`^ERROR: modpost: |^error: modpost: |^\S+: error: objtool|^FAILED:? |^Failed to generate BTF|^BTF: \S+: |^WARN: resolve_btfids: |^Inconsistent kallsyms data|^\S*Kconfig\S*:\d+: (?:syntax error|error|.*unknown statement|.*invalid)|^Error: libbpf |^Warning: Num of global symbols|^error: the compiler|^\*\*\* `)
	noRule         = regexp.MustCompile(`^make(?:\[\d+\])?: \*\*\* No rule to make target '([^']*)'.*`)
	makefileError  = regexp.MustCompile(`^([^\s:]+:\d+): \*\*\* (.*)$`)
	recipeFailed   = regexp.MustCompile(`^make(?:\[\d+\])?: \*\*\* \[(?:(\S+): )?(\S+)\] Error \d+`)
)

// hostTroubles are lines that say that the machine failed, not the source. The
// go command says in lower case what the C library's users capitalise.
var hostTroubles = []struct {
	pattern *regexp.Regexp
	what    string
	next    string
}{
	{
		regexp.MustCompile(`(?i:no space left on device|disk quota exceeded)`),
		"the disk is full",
		"free some space, for example with bin/patchbay clean; the build continues where it was",
	},
	{
		regexp.MustCompile(`Killed signal terminated program|internal compiler error: Killed|(?:virtual memory exhausted|[Oo]ut of memory|Cannot allocate memory|cannot allocate memory)|^Killed$|: signal: killed$|\] Killed$|Error 137$`),
		"memory ran out",
		"close other programs or build with fewer jobs; the build continues where it was",
	},
	{
		regexp.MustCompile(`(?i:: (?:input/output error|read-only file system|too many open files)$)|fork: (?:retry: )?Resource temporarily unavailable`),
		"the machine failed the build",
		"mend what the tool complains about; the build continues where it was",
	},
	{
		regexp.MustCompile(`: fatal error: (?:gelf|libelf|elf|zlib|openssl/\w+)\.h: No such file`),
		"a header that the kernel's own tools need is missing",
		"bin/setup installs what is missing",
	},
	{
		regexp.MustCompile(`(?:^|/)(?:sh|bash|dash)?(?:: (?:line )?\d+)?: (?:\S*/)?(?:flex|bison|bc|perl|python3|pahole|gcc|ld|awk|gawk|rsync|cpio|xz|gzip|lz4|zstd|openssl|\S*ld\.lld|m4): (?:command )?not found|^make(?:\[\d+\])?: (?:flex|bison|bc|perl|python3|gcc|ld|rsync|gawk): No such file|(?:\S+): (?:pahole|flex|bison|bc) \(\S+\) is not available`),
		"a tool that the kernel's build needs is missing",
		"bin/setup installs what is missing",
	},
}

// hostTrouble returns an error if one of the lines says that the machine failed.
func hostTrouble(doing, subject string, lines []string) error {
	for _, t := range hostTroubles {
		for _, l := range lines {
			if !snippet.MatchString(l) && t.pattern.MatchString(l) {
				return &fault.Error{
					Blame: fault.Harness, Doing: doing, Subject: subject, Err: errors.New(t.what), Said: l, Next: t.next,
				}
			}
		}
	}
	return nil
}

// explain turns the log of a failed make into an error: the few lines that
// matter, and who is to blame for them.
func explain(doing string, log []byte, src, logPath string) error {
	text := strings.ToValidUTF8(string(log), "\uFFFD")
	text = strings.ReplaceAll(text, src+"/", "")
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		lines[i] = cut(strings.TrimRight(l, "\r"))
	}
	if trouble := hostTrouble(doing, logPath, lines); trouble != nil {
		return trouble
	}
	found := complaints(lines)
	e := &fault.Error{
		Blame: fault.Kernel, Doing: doing,
		Next: "the whole log is " + logPath,
	}
	if found == nil {
		e.Err, e.Said = errors.New("make failed"), tail([]byte(strings.Join(lines, "\n")), 10)
		return e
	}
	e.Subject, e.Err = found[0].where, errors.New("it does not compile")
	var said []string
	for _, c := range found[:min(len(found), maxComplaints)] {
		said = append(said, c.lines...)
	}
	if more := len(found) - maxComplaints; more > 0 {
		said = append(said, fmt.Sprintf("... and %d more", more))
	}
	e.Said = strings.Join(said, "\n")
	return e
}

func cut(line string) string {
	if r := []rune(line); len(r) > maxWidth {
		return string(r[:maxWidth]) + "..."
	}
	return line
}

// complaints finds the errors in a log, in its order. make's own words, that a
// target failed, count only if nothing says why.
func complaints(lines []string) []complaint {
	var found []complaint
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		if snippet.MatchString(l) {
			continue
		}
		switch {
		case compilerError.MatchString(l):
			m := compilerError.FindStringSubmatch(l)
			first := i
			for first > 0 && i-first < 4 && compilerContext.MatchString(lines[first-1]) {
				first--
			}
			last := i
			for last+1 < len(lines) && last-first+1 < maxComplaintLines && compilerDetail.MatchString(lines[last+1]) {
				last++
			}
			found = append(found, complaint{m[1] + ":" + m[2], lines[first : last+1]})
			i = last
		case linkerError.MatchString(l):
			first := i
			if i > 0 && linkerContext.MatchString(lines[i-1]) {
				first--
			}
			found = append(found, complaint{linkerError.FindStringSubmatch(l)[1], lines[first : i+1]})
		case noRule.MatchString(l):
			found = append(found, complaint{noRule.FindStringSubmatch(l)[1], lines[i : i+1]})
		case makefileError.MatchString(l):
			found = append(found, complaint{makefileError.FindStringSubmatch(l)[1], lines[i : i+1]})
		case otherError.MatchString(l):
			found = append(found, complaint{"", lines[i : i+1]})
		}
	}
	if found != nil {
		return found
	}
	for i, l := range lines {
		if m := recipeFailed.FindStringSubmatch(l); m != nil {
			// Whatever it said stands right before.
			return []complaint{{m[2], lines[max(0, i-5) : i+1]}}
		}
	}
	return nil
}
