// SPDX-License-Identifier: MIT

package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unicode"
	"unicode/utf8"

	"patchbay/harness/internal/fault"
	"patchbay/harness/verdict"
)

const resultsName = "results.json"

//go:embed results.schema.json
var schema []byte

// Schema returns the JSON schema (2020-12) of results.json.
func Schema() []byte { return slices.Clone(schema) }

// WriteJSON writes the run as Schema describes it.
func WriteJSON(w io.Writer, run *verdict.Run) error {
	whole := *run
	// The schema has arrays and objects where Go has nil.
	whole.Cells = append([]verdict.Cell{}, run.Cells...)
	for i := range whole.Cells {
		if whole.Cells[i].Tests == nil {
			whole.Cells[i].Tests = []verdict.Test{}
		}
	}
	if whole.Command == nil {
		whole.Command = []string{}
	}
	if whole.Versions == nil {
		whole.Versions = map[string]string{}
	}
	data, err := marshal(&whole, "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// marshal makes JSON that ends in a newline and is safe to look at: a terminal
// takes some of what JSON allows in a string for an order.
func marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	odd := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if bytes.IndexFunc(b.Bytes(), odd) < 0 {
		return b.Bytes(), nil
	}
	// What is no ASCII stands in strings only.
	safe := make([]byte, 0, b.Len()+64)
	for data := b.Bytes(); len(data) > 0; {
		r, size := utf8.DecodeRune(data)
		switch {
		case !odd(r):
			safe = append(safe, data[:size]...)
		case r > 0xffff:
			r -= 0x10000
			safe = fmt.Appendf(safe, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			safe = fmt.Appendf(safe, `\u%04x`, r)
		}
		data = data[size:]
	}
	return safe, nil
}

// ReadJSON reads results.json in the folder of a run.
func ReadJSON(dir string) (*verdict.Run, error) {
	path := filepath.Join(dir, resultsName)
	run, err := readJSON(path)
	if err == nil {
		return run, nil
	}
	e := &fault.Error{Blame: fault.Configuration, Doing: "reading the results of a run", Subject: path, Err: err}
	var version *versionError
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		e.Next = "name the folder of the run, not a file: " + filepath.Dir(dir)
	case errors.Is(err, fs.ErrNotExist):
		e.Next = "name the folder of a finished run, such as out/latest, or make one with bin/patchbay run"
	case errors.Is(err, fs.ErrPermission):
		e.Next = "check its permissions"
	case errors.As(err, &version):
		e.Next = "read it with the patchbay that wrote it, or run again"
	default:
		e.Next = "it is damaged or not patchbay's; run again"
	}
	return nil, e
}

// versionError says that the file has another form.
type versionError struct{ got int }

func (e *versionError) Error() string {
	return fmt.Sprintf("it has schema version %d; this patchbay reads version %d", e.got, verdict.SchemaVersion)
}

func readJSON(path string) (*verdict.Run, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// The version first: what a later one means by the rest is unknown.
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("it is not the JSON of a run: %w", err)
	}
	if head.Schema == nil {
		return nil, errors.New("it is not the JSON of a run: it has no schema version")
	}
	if *head.Schema != verdict.SchemaVersion {
		return nil, &versionError{*head.Schema}
	}
	var run verdict.Run
	if err := json.Unmarshal(data, &run); err != nil {
		return nil, fmt.Errorf("it is not the JSON of a run: %w", err)
	}
	return &run, nil
}
