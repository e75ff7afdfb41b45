// SPDX-License-Identifier: MIT

package series

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/tree"
)

// limit is the largest input that is taken for a series, in bytes. The largest
// ones on the kernel's lists are a few megabytes.
const limit = 64 << 20

// Stdin is the spec that means the standard input.
const Stdin = "-"

// Read reads a series: a folder of *.patch files, an mbox, a single patch, a
// plain diff, or "-" for any of the last three on stdin. What is no series is
// a configuration error.
func Read(ctx context.Context, spec string, stdin io.Reader) (Series, error) {
	s, err := read(ctx, spec, stdin)
	var e *fault.Error
	if err == nil || ctx.Err() != nil || errors.As(err, &e) {
		return s, err
	}
	return Series{}, &fault.Error{
		Blame: fault.Configuration, Doing: "reading the series", Subject: called(spec), Err: err,
		Next: "name a folder of *.patch files, an mbox, a patch or a diff",
	}
}

func called(spec string) string {
	if spec == Stdin {
		return "standard input"
	}
	return spec
}

func read(ctx context.Context, spec string, stdin io.Reader) (Series, error) {
	scratch, remove, err := keeper.TempDir("patchbay-series-")
	if err != nil {
		return Series{}, &fault.Error{Blame: fault.Harness, Doing: "making a folder for temporary files", Err: err}
	}
	defer remove()
	r := reader{scratch}

	if spec == Stdin {
		data, err := slurp(stdin)
		if err != nil {
			return Series{}, err
		}
		return r.one(ctx, spec, data)
	}
	info, err := os.Stat(spec)
	if err != nil {
		return Series{}, err
	}
	if info.IsDir() {
		return r.folder(ctx, spec)
	}
	data, err := slurpFile(spec)
	if err != nil {
		return Series{}, err
	}
	return r.one(ctx, spec, data)
}

func slurpFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return slurp(f)
}

func slurp(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("it is larger than %d MB", limit>>20)
	}
	return data, err
}

// reader takes mails apart with git, which needs files to do so.
type reader struct{ scratch string }

// folder reads *.patch files in the order of their names.
func (r reader) folder(ctx context.Context, dir string) (Series, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Series{}, err
	}
	s := Series{Name: dir, Version: 1}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".patch") || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		data, err := slurpFile(path)
		if err != nil {
			return Series{}, err
		}
		messages, err := r.messages(ctx, path, data)
		if err != nil {
			return Series{}, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		if len(messages) != 1 {
			return Series{}, fmt.Errorf("%s holds %d messages: in a folder every file is one patch; an mbox is named by itself", entry.Name(), len(messages))
		}
		m := messages[0]
		m.patch.File = path
		switch {
		case m.diff:
			s.Version = max(s.Version, m.version)
			s.Patches = append(s.Patches, m.patch)
		case m.part == 0 && m.total > 0 || len(s.Patches) == 0 && strings.Contains(entry.Name(), "cover"):
			s.Title = m.title()
		default:
			return Series{}, fmt.Errorf("%s holds no diff", entry.Name())
		}
	}
	if len(s.Patches) == 0 {
		return Series{}, errors.New("there is no *.patch file with a diff in it")
	}
	return s, nil
}

// one reads a file that holds a whole series.
func (r reader) one(ctx context.Context, spec string, data []byte) (Series, error) {
	messages, err := r.messages(ctx, called(spec), data)
	if err != nil {
		return Series{}, err
	}
	s, err := choose(messages)
	s.Name = spec
	return s, err
}

// message is one mail.
type message struct {
	patch Patch
	tags  // of its subject
	reply bool
	diff  bool
}

func (m message) title() string {
	if strings.HasPrefix(m.patch.Subject, "***") {
		// The template that git format-patch writes, not filled in.
		return ""
	}
	return m.patch.Subject
}

// name says which part it is: "2/3", or its subject.
func (m message) name() string {
	if m.total > 0 {
		return fmt.Sprintf("%d/%d", m.part, m.total)
	}
	return strconv.Quote(m.patch.Subject)
}

var (
	mailStart = regexp.MustCompile(`^(From |[A-Za-z][A-Za-z0-9-]*:[ \t])`)
	diffStart = regexp.MustCompile(`(?m)^(diff --git |--- [^\n]+\r?\n\+\+\+ )`)
)

// messages splits a file into mails. A plain diff becomes one without headers.
func (r reader) messages(ctx context.Context, from string, data []byte) ([]message, error) {
	data = bytes.TrimLeft(data, "\r\n\ufeff")
	switch {
	case len(data) == 0:
		return nil, errors.New("it is empty")
	case bytes.IndexByte(data, 0) >= 0:
		return nil, errors.New("it is not text")
	case !mailStart.Match(data) || bytes.HasPrefix(data, []byte("Index: ")):
		m, err := plain(from, data)
		return []message{m}, err
	}
	split, err := os.MkdirTemp(r.scratch, "split-")
	if err != nil {
		return nil, err
	}
	whole := filepath.Join(split, "whole")
	if err := os.WriteFile(whole, data, 0o600); err != nil {
		return nil, err
	}
	// -b takes a file that does not begin with a From line for one message.
	said, err := (tree.Git{Dir: split}).Run(ctx, "mailsplit", "-b", "--mboxrd", "-d8", "-o.", "whole")
	if err != nil {
		return nil, err
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(said)))
	if err != nil {
		return nil, fmt.Errorf("git mailsplit said %q", said)
	}
	all := make([]message, count)
	for i := range all {
		name := from
		if count > 1 {
			name = fmt.Sprintf("message %d of %s", i+1, from)
		}
		if all[i], err = r.message(ctx, filepath.Join(split, fmt.Sprintf("%08d", i+1)), name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

// plain makes a message of a diff without headers.
func plain(from string, data []byte) (message, error) {
	at := diffStart.FindIndex(data)
	if at == nil {
		return message{}, errors.New("it is neither a mail nor a diff")
	}
	// Kernel sources have no CR; a diff that has them throughout got them on
	// its way here.
	first, _, _ := bytes.Cut(data[at[0]:], []byte("\n"))
	if bytes.HasSuffix(first, []byte("\r")) {
		data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	}
	return message{
		patch: Patch{
			File: from, Subject: "changes from " + filepath.Base(from),
			Author: "patchbay <patchbay>", Date: time.Unix(1_000_000_000, 0).UTC(), Diff: data,
		},
		tags: tags{version: 1}, diff: true,
	}, nil
}

// message has git decode one mail.
func (r reader) message(ctx context.Context, path, name string) (message, error) {
	in, err := os.Open(path)
	if err != nil {
		return message{}, err
	}
	defer in.Close()
	said, err := (tree.Git{Dir: r.scratch, Stdin: in}).Run(ctx, "mailinfo", "-k", "--encoding=UTF-8", "--quoted-cr=strip", "body", "diff")
	if err != nil {
		return message{}, err
	}
	header := map[string]string{}
	for line := range strings.Lines(string(said)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok {
			header[key] = value
		}
	}
	body, err := os.ReadFile(filepath.Join(r.scratch, "body"))
	if err != nil {
		return message{}, err
	}
	diff, err := os.ReadFile(filepath.Join(r.scratch, "diff"))
	if err != nil {
		return message{}, err
	}
	m := message{patch: Patch{
		File: name, Body: strings.TrimSpace(string(body)), Diff: diff,
		Author: fmt.Sprintf("%s <%s>", header["Author"], header["Email"]),
	}, diff: diffStart.Match(diff)}
	m.patch.Subject, m.tags, m.reply = parseSubject(header["Subject"])
	m.patch.Date, err = mail.ParseDate(header["Date"])
	if err != nil {
		m.patch.Date = time.Unix(1_000_000_000, 0).UTC()
	}
	if m.diff && !m.reply && header["Email"] == "" {
		return message{}, errors.New("the patch has no author: there is no From: line")
	}
	if m.patch.Subject == "" {
		m.patch.Subject = "changes from " + filepath.Base(name)
	}
	return m, nil
}

// tags are what stands in the brackets of a subject.
type tags struct {
	version int
	part    int
	total   int // 0 if the subject has no part number
}

var (
	replyMark  = regexp.MustCompile(`(?i)^(re|aw|antw|sv|fwd?|vs)(\[\d+\])?:\s*`)
	bracket    = regexp.MustCompile(`^\[([^\]]*)\]\s*`)
	versionTag = regexp.MustCompile(`(?i)^(?:.*patch)?v(\d{1,4})$`)
	partTag    = regexp.MustCompile(`^(\d{1,4})/(\d{1,4})$`)
)

// parseSubject takes "[PATCH bpf-next v2 1/2] what: it does" apart.
func parseSubject(subject string) (rest string, t tags, reply bool) {
	t.version = 1
	rest = strings.TrimSpace(subject)
	for {
		if mark := replyMark.FindString(rest); mark != "" {
			reply = true
			rest = rest[len(mark):]
			continue
		}
		group := bracket.FindStringSubmatch(rest)
		if group == nil {
			return rest, t, reply
		}
		rest = rest[len(group[0]):]
		for _, word := range strings.FieldsFunc(group[1], func(c rune) bool { return c == ' ' || c == ',' || c == '\t' }) {
			if v := versionTag.FindStringSubmatch(word); v != nil {
				t.version, _ = strconv.Atoi(v[1])
			} else if p := partTag.FindStringSubmatch(word); p != nil {
				t.part, _ = strconv.Atoi(p[1])
				t.total, _ = strconv.Atoi(p[2])
			}
		}
	}
}

// choose picks the patches of the newest version out of a mailbox and puts
// them in order.
func choose(all []message) (Series, error) {
	s := Series{}
	older := map[int]int{}
	replies := 0
	for _, m := range all {
		switch {
		case m.reply:
			if m.diff {
				replies++
			}
		case m.diff:
			s.Version = max(s.Version, m.version)
			older[m.version]++
		}
	}
	if replies > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("left out: %d replies that have a diff in them", replies))
	}
	if len(older) == 0 {
		err := fmt.Errorf("none of its %d messages is a patch", len(all))
		if replies > 0 {
			err = fmt.Errorf("%w; %d replies have a diff in them, but replies are not applied", err, replies)
		}
		return s, err
	}
	for v := 1; v < s.Version; v++ {
		if older[v] > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("v%d is used; v%d (%d patches) is in it too", s.Version, v, older[v]))
		}
	}

	var loose []message
	parts := map[int]message{}
	total := 0
	for _, m := range all {
		if m.reply || m.version != s.Version {
			continue
		}
		switch {
		case m.total > 0 && m.part == 0 && !m.diff:
			s.Title = m.title()
		case !m.diff:
			s.Notes = append(s.Notes, fmt.Sprintf("left out: %s, which has no diff", m.name()))
		case m.total == 0:
			if !contains(loose, m) {
				loose = append(loose, m)
			}
		case total != 0 && m.total != total:
			return s, fmt.Errorf("its parts are of different series: %s and one of %d; keep only one of them", m.name(), total)
		default:
			total = m.total
			before, twice := parts[m.part]
			if twice && !same(before, m) {
				return s, fmt.Errorf("two different patches are part %s: %q and %q; keep only one of them", m.name(), before.patch.Subject, m.patch.Subject)
			}
			if !twice {
				parts[m.part] = m
			}
		}
	}
	if len(loose) > 0 && total > 0 {
		return s, fmt.Errorf("%s has no part number, but others have one (of %d): its place among them is unknown; keep only one series", loose[0].name(), total)
	}
	for _, m := range loose {
		s.Patches = append(s.Patches, m.patch)
	}
	var missing *multierror.Error
	for i := 1; i <= total; i++ {
		m, ok := parts[i]
		if !ok {
			missing = multierror.Append(missing, fmt.Errorf("%d/%d", i, total))
			continue
		}
		s.Patches = append(s.Patches, m.patch)
		delete(parts, i)
	}
	for i := range parts {
		if i < 1 || i > total {
			return s, fmt.Errorf("it has a part %d/%d", i, total)
		}
	}
	if missing != nil {
		missing.ErrorFormat = func(errs []error) string {
			names := make([]string, len(errs))
			for i, err := range errs {
				names[i] = err.Error()
			}
			return strings.Join(names, ", ")
		}
		return s, fmt.Errorf("of v%d these parts are missing: %w", s.Version, missing)
	}
	return s, nil
}

func contains(all []message, m message) bool {
	for _, other := range all {
		if same(other, m) {
			return true
		}
	}
	return false
}

// same says whether two mails carry the same change: a list and a Cc each
// bring a copy.
func same(a, b message) bool {
	return a.patch.Subject == b.patch.Subject && bytes.Equal(bytes.TrimSpace(a.patch.Diff), bytes.TrimSpace(b.patch.Diff))
}
