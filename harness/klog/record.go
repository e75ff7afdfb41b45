// SPDX-License-Identifier: MIT

// Package klog reads the kernel log, from /dev/kmsg and from consoles, finds
// the complaints in it and holds them against a list of known ones.
package klog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"patchbay/harness/internal/fault"
)

// LevelUnknown is the level of a record that was read from a console which
// prints no "<level>" prefix.
const LevelUnknown uint8 = 255

// facilityUser is LOG_USER: the kernel never lets a writer of /dev/kmsg claim
// facility 0, so that whatever is not 0 was said by user space.
const facilityUser uint8 = 1

// maxRecord bounds what is accepted as one /dev/kmsg record. The kernel's own
// bound is PRINTK_MESSAGE_MAX (2048) in kernel/printk/internal.h; each byte of
// the text may become four by escaping.
const maxRecord = 16 << 10

// Record is one record of the kernel log.
type Record struct {
	// Seq is the kernel's sequence number; 0 in a record from a console.
	Seq uint64
	// Level is the syslog level, 0 (emergency) to 7 (debug), or LevelUnknown.
	Level uint8
	// Facility is the syslog facility: 0 is the kernel, anything else a
	// user-space writer.
	Facility uint8
	// Time is the time since boot, to the microsecond; 0 also when unknown.
	Time time.Duration
	// Caller is who printed it, as CONFIG_PRINTK_CALLER tells: "T12" is the
	// task with that pid, "C3" an interrupt on that CPU; "" when unknown.
	Caller string
	// Text is the message, escaped as /dev/kmsg escapes it: printable ASCII,
	// everything else, and the backslash, as \xNN.
	Text string
	// Cont marks a fragment of a line (LOG_CONT).
	Cont bool
	// Fields are the key/value pairs after the message (SUBSYSTEM, DEVICE).
	Fields map[string]string
}

// FromConsole reports whether only a console had the record: it has neither a
// number nor a level.
func (r *Record) FromConsole() bool { return r.Seq == 0 && r.Level == LevelUnknown }

// wireRecord is a record in JSON: the time as whole microseconds, which is
// what the kernel prints, and nothing for what is usually absent.
type wireRecord struct {
	Seq      uint64            `json:"seq"`
	Level    uint8             `json:"level"`
	Facility uint8             `json:"facility,omitempty"`
	Time     int64             `json:"time_us"`
	Caller   string            `json:"caller,omitempty"`
	Text     string            `json:"text"`
	Cont     bool              `json:"cont,omitempty"`
	Fields   map[string]string `json:"fields,omitempty"`
}

// MarshalJSON writes the time as "time_us", whole microseconds.
func (r Record) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireRecord{
		r.Seq, r.Level, r.Facility, r.Time.Microseconds(), r.Caller, r.Text, r.Cont, r.Fields,
	})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (r *Record) UnmarshalJSON(data []byte) error {
	var w wireRecord
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	if w.Time < 0 || w.Time > maxTime.Microseconds() {
		return fmt.Errorf("time_us %d is out of range", w.Time)
	}
	*r = Record{
		w.Seq, w.Level, w.Facility, time.Duration(w.Time) * time.Microsecond,
		w.Caller, w.Text, w.Cont, w.Fields,
	}
	return nil
}

// maxTime is the latest time that fits into a record: 292 years.
const maxTime = time.Duration(1<<63 - 1)

// ParseKmsg parses one record as a read of /dev/kmsg returns it
// (Documentation/ABI/testing/dev-kmsg). Unknown flags and additional header
// fields are ignored, as that document asks for. The error is a *fault.Error.
func ParseKmsg(data []byte) (Record, error) {
	r, err := parseKmsg(data)
	if err != nil {
		shown := data
		if len(shown) > 200 {
			shown = shown[:200]
		}
		return Record{}, &fault.Error{
			Blame:   fault.Harness,
			Doing:   "reading a kernel log record",
			Subject: strconv.Quote(string(shown)),
			Err:     err,
			Next:    "check that what reads /dev/kmsg in the guest hands on whole records",
		}
	}
	return r, nil
}

func parseKmsg(data []byte) (Record, error) {
	var r Record
	if len(data) > maxRecord {
		return r, fmt.Errorf("%d bytes long, more than %d", len(data), maxRecord)
	}
	head, body, ok := bytes.Cut(data, []byte{';'})
	if !ok {
		return r, errors.New("no ';' after the header")
	}
	fields := strings.Split(string(head), ",")
	if len(fields) < 4 {
		return r, fmt.Errorf("%d header fields, fewer than 4", len(fields))
	}
	// The priority is facility<<3 | level, and the facility is a byte.
	prio, err := strconv.ParseUint(fields[0], 10, 11)
	if err != nil {
		return r, fmt.Errorf("priority: %w", err)
	}
	r.Level, r.Facility = uint8(prio&7), uint8(prio>>3)
	if r.Seq, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return r, fmt.Errorf("sequence number: %w", err)
	}
	usec, err := strconv.ParseUint(fields[2], 10, 63)
	if err != nil {
		return r, fmt.Errorf("time: %w", err)
	}
	if usec > uint64(maxTime/time.Microsecond) {
		return r, fmt.Errorf("time: %d us is out of range", usec)
	}
	r.Time = time.Duration(usec) * time.Microsecond
	r.Cont = strings.Contains(fields[3], "c")
	for _, f := range fields[4:] {
		if caller, ok := strings.CutPrefix(f, "caller="); ok && isCaller(caller) {
			r.Caller = caller
		}
	}

	text, rest, _ := bytes.Cut(body, []byte{'\n'})
	r.Text = escapeText(text)
	for len(rest) > 0 {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		key, value, ok := bytes.Cut(line, []byte{'='})
		if !ok || len(key) < 2 || key[0] != ' ' {
			continue
		}
		if r.Fields == nil {
			r.Fields = map[string]string{}
		}
		r.Fields[escapeText(key[1:])] = escapeText(value)
	}
	return r, nil
}

// isCaller says whether s is a caller as the kernel prints one: "T12", "C3".
func isCaller(s string) bool {
	if len(s) < 2 || len(s) > 11 || (s[0] != 'T' && s[0] != 'C') {
		return false
	}
	for i := 1; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// escapeText writes bytes that are no printable ASCII as \xNN. It leaves a
// backslash alone: text from /dev/kmsg has been escaped already.
func escapeText(b []byte) string {
	clean := true
	for _, c := range b {
		if c < ' ' || c >= 127 {
			clean = false
			break
		}
	}
	if clean {
		return string(b)
	}
	return string(appendEscaped(nil, b, false))
}

func appendEscaped(to, b []byte, backslash bool) []byte {
	const hex = "0123456789abcdef"
	for _, c := range b {
		if c < ' ' || c >= 127 || (backslash && c == '\\') {
			to = append(to, '\\', 'x', hex[c>>4], hex[c&15])
		} else {
			to = append(to, c)
		}
	}
	return to
}

// lines splits a record's text where the kernel printed a newline inside of
// one message.
func lines(text string) []string { return strings.Split(text, `\x0a`) }
