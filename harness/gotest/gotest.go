// SPDX-License-Identifier: MIT

// Package gotest reads what a Go test binary prints under
// -test.v=test2json, as it prints it.
//
// The standard converter, go tool test2json, is a program of the Go
// distribution; the guest has none, and the agent needs to know at once when a
// test starts. The format is the one documented there: a line that the
// testing package wrote begins with a SYN byte, all else is output.
package gotest

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// Kind says what an Event is. The zero value is invalid.
type Kind uint8

// The kinds of events.
const (
	_ Kind = iota
	// Start opens a test or sub-test.
	Start
	// End closes it with a Result.
	End
	// Output is text printed while Test was the current one; Test is empty
	// before the first and after the last.
	Output
)

// Result is how a test ended. The zero value is invalid.
type Result uint8

// The results that the testing package knows.
const (
	_ Result = iota
	Pass
	Fail
	Skip
)

// Event is one thing that happened in the stream.
type Event struct {
	Kind Kind
	// Test is the full name, as in TestA/sub_test.
	Test string
	// Result and Elapsed belong to End. Elapsed has the testing package's
	// resolution of 10 ms.
	Result  Result
	Elapsed time.Duration
	// Text belongs to Output: a piece of a line, with its newline if it has
	// one. The handler must not keep it.
	Text []byte
}

// Parser turns a stream of bytes into events. Its input is not trusted: no
// line is kept beyond maxLine bytes.
type Parser struct {
	handle  func(Event)
	current string
	line    []byte
}

// maxLine bounds what is held back while a line is incomplete, in bytes.
// Longer lines come as several Output events.
const maxLine = 16 << 10

// marker is what the testing package puts before its own lines.
const marker = 0x16

// NewParser returns a parser that calls handle for each event, in order, from
// within Write and Close.
func NewParser(handle func(Event)) *Parser { return &Parser{handle: handle} }

// Write takes the next piece of the stream. It never fails.
func (p *Parser) Write(data []byte) (int, error) {
	n := len(data)
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n') + 1
		whole := end > 0
		if !whole {
			end = len(data)
		}
		p.line = append(p.line, data[:end]...)
		data = data[end:]
		if whole || len(p.line) >= maxLine {
			p.flush()
		}
	}
	return n, nil
}

// Close hands out what is left of an unfinished line.
func (p *Parser) Close() error {
	p.flush()
	return nil
}

func (p *Parser) flush() {
	line := p.line
	// A test may print half a line before the testing package prints its
	// own, so the marker can stand anywhere.
	for len(line) > 0 {
		at := bytes.IndexByte(line, marker)
		if at < 0 {
			p.output(line)
			break
		}
		if at > 0 {
			p.output(line[:at])
		}
		if !p.control(string(line[at+1:])) {
			p.output(line[at : at+1])
			line = line[at+1:]
			continue
		}
		break
	}
	p.line = p.line[:0]
}

func (p *Parser) output(text []byte) {
	p.handle(Event{Kind: Output, Test: p.current, Text: text})
}

// control handles a line of the testing package and reports whether it was one.
func (p *Parser) control(line string) bool {
	line = strings.TrimRight(line, "\n")
	if rest, ok := strings.CutPrefix(line, "=== "); ok {
		verb, name, _ := strings.Cut(rest, " ")
		name = strings.TrimSpace(name)
		switch verb {
		case "RUN":
			p.current = name
			p.handle(Event{Kind: Start, Test: name})
		case "NAME", "CONT":
			p.current = name
		case "PAUSE":
			p.current = ""
		}
		return true
	}
	if rest, ok := strings.CutPrefix(line, "--- "); ok {
		verb, rest, _ := strings.Cut(rest, ": ")
		result, ok := map[string]Result{"PASS": Pass, "FAIL": Fail, "SKIP": Skip}[verb]
		at := strings.LastIndex(rest, " (")
		if !ok || at < 0 {
			return false
		}
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(rest[at+2:], "s)"), 64)
		if err != nil {
			return false
		}
		p.current = ""
		p.handle(Event{
			Kind: End, Test: rest[:at], Result: result,
			Elapsed: time.Duration(seconds * float64(time.Second)),
		})
		return true
	}
	return line == "PASS" || line == "FAIL"
}

// Pattern returns the -test.run pattern that selects exactly the named tests
// and sub-tests, and whatever runs below them.
func Pattern(names []string) string {
	type group struct {
		parent string
		leaves []string
	}
	var groups []*group
	index := map[string]*group{}
	for _, name := range names {
		parent, leaf := "", name
		if at := strings.LastIndexByte(name, '/'); at >= 0 {
			parent, leaf = name[:at], name[at+1:]
		}
		g := index[parent]
		if g == nil {
			g = &group{parent: parent}
			index[parent] = g
			groups = append(groups, g)
		}
		g.leaves = append(g.leaves, quote(leaf))
	}
	var alternatives []string
	for _, g := range groups {
		var parts []string
		if g.parent != "" {
			for _, part := range strings.Split(g.parent, "/") {
				parts = append(parts, "^"+quote(part)+"$")
			}
		}
		parts = append(parts, "^("+strings.Join(g.leaves, "|")+")$")
		alternatives = append(alternatives, strings.Join(parts, "/"))
	}
	return strings.Join(alternatives, "|")
}

// quote escapes what a regular expression would not take literally. The
// testing package splits patterns at slashes and bars outside of brackets and
// parentheses before it compiles them; names hold neither.
func quote(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
