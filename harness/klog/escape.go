// SPDX-License-Identifier: MIT

package klog

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape makes text from a guest safe for a terminal and for one line: every
// control and format character (escape sequences, newlines, tabs, overrides of
// the writing direction), every space other than the plain one, and every byte
// that is no UTF-8 becomes visible as \xNN or \uNNNN. What is printable, the
// backslash included, stays, so that text from /dev/kmsg passes unchanged.
func Escape(s string) string {
	safe := true
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] >= 127 {
			safe = false
			break
		}
	}
	if safe {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// EscapeLines is Escape for text that keeps its lines; a tab becomes spaces.
func EscapeLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		body, whole := strings.CutSuffix(line, "\n")
		b.WriteString(Escape(strings.ReplaceAll(body, "\t", "    ")))
		if whole {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
