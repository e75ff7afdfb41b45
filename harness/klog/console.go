// SPDX-License-Identifier: MIT

package klog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"patchbay/harness/internal/fault"
)

// maxConsoleLine is where a line of a console is broken into several records.
// The kernel prints at most PRINTK_MESSAGE_MAX (2048) bytes in one go.
const maxConsoleLine = 4096

// ParseConsole reads what a kernel printed to its console, with or without
// "<level>", time and caller in front of each line; the console prints them in
// front of every line of a message, so a message with newlines in it becomes
// several records. Any bytes are accepted:
//
//   - a prefix in the middle of a line, where another writer was cut off,
//     begins a new record;
//   - a line longer than 4096 bytes is broken up, the later parts having Cont;
//   - when the log has times at all, a line without one was not printed by the
//     kernel but by a program or the firmware, and gets the facility LOG_USER.
//     The kernel's "** N printk messages dropped **" has none and stays the
//     kernel's.
//
// What user space wrote to /dev/kmsg looks like the kernel's on a console; only
// Merge with the records of /dev/kmsg can tell it apart.
//
// Seq is 0 and the level LevelUnknown unless the prefix tells it. The records
// read so far are returned with the error, a *fault.Error, when reading fails.
// Memory grows with the input: limit the reader.
func ParseConsole(from io.Reader) ([]Record, error) {
	var (
		records []Record
		timed   bool // some line has a time
		loose   []int
		failed  error
		cont    bool
	)
	add := func(line []byte, cont bool) {
		for first := true; first || len(line) > 0; first = false {
			r := Record{Level: LevelUnknown, Cont: cont && first}
			text, known := line, false
			if !r.Cont {
				text, known = consolePrefix(&r, line)
			}
			line = nil
			if at := prefixInside(text); at >= 0 {
				text, line = text[:at], text[at:]
			}
			r.Text = consoleText(text)
			switch {
			case known:
				timed = true
			case r.Cont:
				// It is whose the part before it was.
				r.Facility = records[len(records)-1].Facility
				if n := len(loose); n > 0 && loose[n-1] == len(records)-1 {
					loose = append(loose, len(records))
				}
			case !isNotice(r.Text):
				loose = append(loose, len(records))
			}
			records = append(records, r)
		}
	}
	in := bufio.NewReaderSize(from, maxConsoleLine)
	for failed == nil {
		line, err := in.ReadSlice('\n')
		whole := err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			failed = err
		}
		if whole {
			line = line[:len(line)-1]
		}
		if whole || failed != nil {
			line = bytes.TrimRight(line, "\r")
		}
		if len(line) > 0 || (whole && !cont) {
			add(line, cont)
		}
		cont = !whole
	}
	if timed {
		for _, i := range loose {
			records[i].Facility = facilityUser
		}
	}
	if errors.Is(failed, io.EOF) {
		return records, nil
	}
	return records, &fault.Error{
		Blame: fault.Harness, Doing: "reading a console log", Err: failed,
		Next: "check that the file can be read; what was read until then is kept",
	}
}

// consolePrefix parses "<4>[    1.234567][    T1] " into r and returns what
// follows it, and whether there was a time. info_print_prefix in
// kernel/printk/printk.c writes it.
func consolePrefix(r *Record, line []byte) (text []byte, timed bool) {
	rest := line
	if prio, after, ok := between(rest, '<', '>', 4); ok {
		n, err := strconv.ParseUint(string(prio), 10, 11)
		if err != nil {
			return line, false
		}
		r.Level, r.Facility = uint8(n&7), uint8(n>>3)
		rest = after
	}
	stamp, after, ok := between(rest, '[', ']', 20)
	if !ok {
		return rest, false
	}
	at, ok := parseStamp(stamp)
	if !ok {
		return rest, false
	}
	r.Time, rest = at, after
	if caller, after, ok := between(rest, '[', ']', 12); ok {
		if c := string(bytes.TrimLeft(caller, " ")); isCaller(c) {
			r.Caller, rest = c, after
		}
	}
	return bytes.TrimPrefix(rest, []byte{' '}), true
}

// between returns what stands between the first byte, which must be open, and
// the next end, at most limit bytes away.
func between(b []byte, open, end byte, limit int) (inside, after []byte, ok bool) {
	if len(b) < 2 || b[0] != open {
		return nil, nil, false
	}
	n := bytes.IndexByte(b[1:min(len(b), limit+2)], end)
	if n < 0 {
		return nil, nil, false
	}
	return b[1 : 1+n], b[2+n:], true
}

// parseStamp parses "    1.234567" (%5lu.%06lu).
func parseStamp(b []byte) (time.Duration, bool) {
	b = bytes.TrimLeft(b, " ")
	if len(b) < 8 || b[len(b)-7] != '.' {
		return 0, false
	}
	var n uint64
	for i, c := range b {
		if i == len(b)-7 {
			continue
		}
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
		if n > uint64(maxTime/time.Microsecond) {
			return 0, false
		}
	}
	return time.Duration(n) * time.Microsecond, true
}

// prefixInside finds where in the middle of a line the kernel began a new one,
// or returns -1. The time must be padded as the kernel pads it, and a space
// must follow, so that times which somebody quotes are rarely taken for one.
func prefixInside(line []byte) int {
	for from := 1; from < len(line); {
		n := bytes.IndexByte(line[from:], '[')
		if n < 0 {
			return -1
		}
		at := from + n
		stamp, after, ok := between(line[at:], '[', ']', 20)
		if ok && len(stamp) >= 12 {
			if _, ok := parseStamp(stamp); ok {
				if caller, rest, ok := between(after, '[', ']', 12); ok && isCaller(string(bytes.TrimLeft(caller, " "))) {
					after = rest
				}
				if len(after) > 0 && after[0] == ' ' {
					return at
				}
			}
		}
		from = at + 1
	}
	return -1
}

// consoleText escapes like /dev/kmsg does, so that both name a line alike.
func consoleText(b []byte) string {
	for _, c := range b {
		if c < ' ' || c >= 127 || c == '\\' {
			return string(appendEscaped(nil, b, true))
		}
	}
	return string(b)
}

// isNotice says whether the line is printk's own word about lost or repeated
// messages (console_prepend_dropped, console_prepend_replay).
func isNotice(text string) bool {
	return strings.HasPrefix(text, "** ") && (isDropped(text) || text == "** replaying previous printk message **")
}

// isDropped says whether the line tells that messages are missing before it.
func isDropped(text string) bool {
	return strings.HasPrefix(text, "** ") && strings.HasSuffix(text, " printk messages dropped **")
}

// Merge returns the records of /dev/kmsg with those kernel records of the
// console put in which /dev/kmsg never delivered: the last words of a kernel
// that died. The order is that of both logs, by time where only that decides.
// What programs printed to the console is not merged, and a notice about
// dropped messages only where the console is the sole witness. The arguments
// are not changed.
func Merge(kmsg, console []Record) []Record {
	timed := false
	for _, c := range console {
		timed = timed || c.Time != 0
	}
	stamp := func(r Record) time.Duration {
		if timed {
			return r.Time
		}
		return 0
	}
	// A message with newlines is one record in kmsg but several on the console.
	type key struct {
		at   time.Duration
		line string
	}
	delivered := map[key]int{}
	sameTime := map[time.Duration][]key{}
	for i, k := range kmsg {
		for _, line := range lines(k.Text) {
			at := key{stamp(k), line}
			delivered[at] = i
			sameTime[at.at] = append(sameTime[at.at], at)
		}
	}
	find := func(c Record) int {
		at := key{stamp(c), c.Text}
		if i, ok := delivered[at]; ok {
			return i
		}
		// A console line may have been cut short by another writer. Before the
		// clock runs, and in a flood, the time says nothing.
		if near := sameTime[at.at]; at.at != 0 && at.line != "" && len(near) <= 64 {
			for _, k := range near {
				if strings.HasPrefix(k.line, at.line) {
					return delivered[k]
				}
			}
		}
		return -1
	}

	merged := make([]Record, 0, len(kmsg))
	next := 0 // of kmsg, to be taken
	take := func(until int) {
		if until > next {
			merged = append(merged, kmsg[next:until]...)
			next = until
		}
	}
	var notice *Record
	for i, c := range console {
		if c.Facility != 0 {
			continue
		}
		if isNotice(c.Text) {
			notice = &console[i]
			continue
		}
		if at := find(c); at >= 0 {
			take(at + 1)
			notice = nil
			continue
		}
		for timed && next < len(kmsg) && kmsg[next].Time <= stamp(c) {
			take(next + 1)
		}
		if notice != nil {
			merged = append(merged, *notice)
			notice = nil
		}
		merged = append(merged, c)
	}
	take(len(kmsg))
	if notice != nil {
		merged = append(merged, *notice)
	}
	return merged
}
