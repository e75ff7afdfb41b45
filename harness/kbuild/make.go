// SPDX-License-Identifier: MIT

package kbuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/internal/progress"
)

// maxWarnings is how many compiler warnings an artifact keeps.
const maxWarnings = 20

// niceness is what makes guests, which are being waited for, go before builds.
const niceness = "10"

// maker runs make for one build in one slot and keeps its log.
type maker struct {
	ctx  context.Context
	slot *slot
	jobs int
	news progress.Func
	log  string

	file     *os.File
	warnings []string
}

func (m *maker) open() (err error) {
	m.file, err = os.Create(m.log)
	return err
}

func (m *maker) close() { m.file.Close() }

// stage is one call of make.
type stage struct {
	// doing says what is under way, for errors.
	doing string
	// args are make's, env is added to its environment.
	args, env []string
	// line is called with every line that make prints, without its newline.
	line func(line []byte)
}

// run calls make. A failure is blamed on whoever its log points to.
func (m *maker) run(st stage) error {
	args := append([]string{
		"-n", niceness, "make", "--no-print-directory",
		// Whole recipes at a time: what a compiler says stays together.
		"--output-sync=target", "-j", strconv.Itoa(m.jobs),
	}, st.args...)
	cmd := keeper.Command(m.ctx, "nice", args...)
	cmd.Dir = m.slot.src()
	cmd.Env = append(environment(), st.env...)
	cmd.Stdin = m.slot.lock
	start, err := m.file.Seek(0, 2)
	if err != nil {
		return cacheFailed(m.log, err)
	}
	if _, err := fmt.Fprintf(m.file, "$ %s\n", cmd); err != nil {
		return cacheFailed(m.log, err)
	}
	w := &lines{file: m.file, each: func(line []byte) {
		m.warn(line)
		if st.line != nil {
			st.line(line)
		}
	}}
	cmd.Stdout, cmd.Stderr = w, w

	if err := os.WriteFile(m.slot.busy(), nil, 0o644); err != nil {
		return slotFailed(m.slot.busy(), err)
	}
	err = cmd.Run()
	w.flush()
	if m.ctx.Err() != nil {
		return m.ctx.Err()
	}
	if w.err != nil {
		return cacheFailed(m.log, w.err)
	}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() > 125) {
		return &fault.Error{
			Blame: fault.Harness, Doing: st.doing, Subject: m.log, Err: fmt.Errorf("make did not end by itself: %w", err),
			Said: tail(m.since(start), 10),
			Next: "see whether memory ran out (dmesg), then run again: it continues where it was",
		}
	}
	if rmErr := os.Remove(m.slot.busy()); rmErr != nil {
		return slotFailed(m.slot.busy(), rmErr)
	}
	if err == nil {
		return nil
	}
	return explain(st.doing, m.since(start), m.slot.src(), m.log)
}

// since returns the log from an offset on, at most its last maxLog bytes.
func (m *maker) since(offset int64) []byte {
	const maxLog = 16 << 20
	end, err := m.file.Seek(0, 2)
	if err != nil {
		return nil
	}
	offset = max(offset, end-maxLog)
	f, err := os.Open(m.log)
	if err != nil {
		return nil
	}
	defer f.Close()
	data := make([]byte, end-offset)
	n, _ := f.ReadAt(data, offset)
	return data[:n]
}

var warning = regexp.MustCompile(`^\S+:\d+:(?:\d+:)? warning: |^\S+: warning: objtool: `)

func (m *maker) warn(line []byte) {
	if len(m.warnings) < maxWarnings && warning.Match(line) {
		text := strings.ReplaceAll(string(line), m.slot.src()+"/", "")
		m.warnings = append(m.warnings, strings.ToValidUTF8(text, "\uFFFD"))
	}
}

// inTree are the arguments for building the kernel out of its tree.
func (m *maker) inTree(args ...string) []string {
	return append([]string{"-C", m.slot.src(), "O=" + m.slot.out()}, args...)
}

func (m *maker) allnoconfig(request, result string) error {
	return m.run(stage{
		doing: "resolving the kernel configuration",
		args:  m.inTree("allnoconfig"),
		env:   []string{"KCONFIG_ALLCONFIG=" + request, "KCONFIG_CONFIG=" + result},
	})
}

// libbpf builds the tree's libbpf and installs it in the slot.
func (m *maker) libbpf() (err error) {
	m.news.Send(progress.Event{Step: "libbpf", State: progress.Started})
	defer func() { m.news.Send(closing("libbpf", err, "")) }()
	// Installed from nothing each time: what another commit had, and this one
	// has not, must not stay. The objects are kept.
	if err := os.RemoveAll(m.slot.libbpfRoot()); err != nil {
		return slotFailed(m.slot.libbpfRoot(), err)
	}
	if err := os.MkdirAll(m.slot.libbpfOut(), 0o755); err != nil {
		return slotFailed(m.slot.libbpfOut(), err)
	}
	done := 0
	return m.run(stage{
		doing: "building libbpf",
		args: []string{
			"-C", filepath.Join(m.slot.src(), "tools/lib/bpf"), "O=" + m.slot.libbpfOut(),
			"DESTDIR=" + m.slot.libbpfRoot(), "prefix=/usr", "libdir=/usr/lib", "install",
		},
		line: func(line []byte) {
			if u := parseUnit(line); u.compiled() {
				done++
				m.news.Send(progress.Event{Step: "libbpf", State: progress.Running, Done: done, Detail: filepath.Base(u.path)})
			}
		},
	})
}

// kernel builds the image and returns how many objects were compiled for it.
func (m *maker) kernel(target arch, cache string) (objects int, err error) {
	before, linked := m.built()
	expected := 0
	if !linked {
		expected = m.expected(cache)
	}
	done := before
	m.news.Send(progress.Event{Step: "kernel", State: progress.Started, Done: done, Total: expected})
	defer func() {
		m.news.Send(closing("kernel", err, fmt.Sprintf("%d objects compiled", objects)))
	}()
	linking := false
	err = m.run(stage{
		doing: "building the kernel",
		args:  m.inTree(target.target),
		line: func(line []byte) {
			u := parseUnit(line)
			switch {
			case u.verb == "":
				return
			case u.path == "vmlinux.o":
				// From here on it compiles tables of symbols and the like.
				linking = true
			case !linking && u.compiled():
				objects++
				done++
			}
			if expected > 0 {
				expected = max(expected, done)
			}
			m.news.Send(progress.Event{Step: "kernel", State: progress.Running, Done: done, Total: expected, Detail: u.verb + " " + u.path})
		},
	})
	if err != nil {
		return objects, err
	}
	if !linked {
		return objects, m.remember(cache, done)
	}
	return objects, nil
}

func closing(step string, err error, detail string) progress.Event {
	if err != nil {
		return progress.Event{Step: step, State: progress.Failed}
	}
	return progress.Event{Step: step, State: progress.Finished, Detail: detail}
}

// built counts the objects that stand in the output folder and says whether it
// holds a linked kernel.
func (m *maker) built() (objects int, linked bool) {
	if _, err := os.Stat(filepath.Join(m.slot.out(), "vmlinux")); err == nil {
		return 0, true
	}
	_ = filepath.WalkDir(m.slot.out(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".o") && d.Type().IsRegular() {
			objects++
		}
		return nil
	})
	return objects, false
}

// unitsPerSymbol is how many objects a kernel has for each kconfig symbol at y,
// measured with v6.12 and the lean fragment: a first guess for the progress
// display, replaced by the real count after the first full build.
const unitsPerSymbol = 2.0

// expected estimates how many objects a full build compiles.
func (m *maker) expected(cache string) int {
	symbols := m.symbols()
	var units, counted int
	data, err := os.ReadFile(m.countFile(cache))
	if err == nil {
		if n, _ := fmt.Sscan(string(data), &units, &counted); n == 2 && units > 0 && counted > 0 {
			return units * symbols / counted
		}
	}
	return int(unitsPerSymbol * float64(symbols))
}

// remember keeps the count of a full build for the next one of that kernel.
func (m *maker) remember(cache string, units int) error {
	path := m.countFile(cache)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return cacheFailed(path, err)
	}
	if err := writeSynced(path, fmt.Appendf(nil, "%d %d\n", units, m.symbols())); err != nil {
		return cacheFailed(path, err)
	}
	return nil
}

func (m *maker) countFile(cache string) string {
	name := m.slot.name[:strings.LastIndexByte(m.slot.name, '-')]
	return filepath.Join(cache, "units", name)
}

func (m *maker) symbols() int {
	config, err := os.ReadFile(filepath.Join(m.slot.out(), ".config"))
	if err != nil {
		return 0
	}
	return countSet(config)
}

// unit is a line in which kbuild says what it does: "  CC      net/core/skmsg.o".
type unit struct{ verb, path string }

var unitLine = regexp.MustCompile(`^  ([A-Z][A-Z0-9+_-]*)(?: \[M\])? +(\S+)`)

func parseUnit(line []byte) unit {
	m := unitLine.FindSubmatch(line)
	if m == nil {
		return unit{}
	}
	return unit{verb: string(m[1]), path: string(m[2])}
}

// compiled says whether the line stands for an object made from a source file
// of the tree; tools for the host do not count.
func (u unit) compiled() bool { return u.verb == "CC" || u.verb == "AS" }

// lines writes to a file and hands every line on.
type lines struct {
	file *os.File
	each func(line []byte)
	rest []byte
	err  error
}

// maxLine is how much of a line without an end is kept in memory.
const maxLine = 64 << 10

// Write never fails: make must not die of a broken pipe when the log cannot be
// written; err has the reason afterwards.
func (w *lines) Write(p []byte) (int, error) {
	if _, err := w.file.Write(p); err != nil && w.err == nil {
		w.err = err
	}
	w.rest = append(w.rest, p...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			break
		}
		w.each(bytes.TrimSuffix(line, []byte("\r")))
		w.rest = rest
	}
	if len(w.rest) > maxLine {
		w.flush()
	}
	return len(p), nil
}

func (w *lines) flush() {
	if len(w.rest) > 0 {
		w.each(w.rest)
	}
	w.rest = nil
}

// tail returns the last n lines.
func tail(data []byte, n int) string {
	all := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(data), "\uFFFD"), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
