// SPDX-License-Identifier: MIT

package report

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

func someEvents() []verdict.Event {
	at := time.Date(2026, 12, 4, 2, 46, 0, 123456789, time.UTC)
	return []verdict.Event{
		{At: at, Kind: verdict.Launch, Boot: 1},
		{At: at, Kind: verdict.TestEnd, Boot: 1, Suite: "s", Test: "T/a", Outcome: verdict.Fail, Elapsed: time.Second},
		{At: at, Kind: verdict.Output, Boot: 1, Suite: "s", Test: "T/ä", Text: "a\nb \u009b31m\U0010ffff\n"},
		{At: at, Kind: verdict.Kmsg, Boot: 1, Record: &klog.Record{Seq: 7, Level: 6, Time: time.Second, Text: "hello"}},
		{At: at, Kind: verdict.Exited, Boot: 1, Suite: "s", Failed: true, Text: "exit status 1"},
	}
}

func TestEventLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	l, err := OpenEventLog(path)
	if err != nil {
		t.Fatal(err)
	}
	events := someEvents()
	for i, e := range events {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
		// It is in the file before anything else happens.
		data, err := os.ReadFile(path)
		if err != nil || bytes.Count(data, []byte("\n")) != i+1 || unsafeRune(string(data), false) != "" {
			t.Errorf("after %d events: %v, %q", i+1, err, data)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadEvents(bytes.NewReader(data))
	if diff := cmp.Diff(events, got); err != nil || diff != "" {
		t.Errorf("%v (-written +read):\n%s", err, diff)
	}
	// Wherever a kill cuts it, the whole lines are read and the rest is said.
	for n := range len(data) {
		got, err := ReadEvents(bytes.NewReader(data[:n]))
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		whole := bytes.Count(data[:n], []byte("\n"))
		rest := data[bytes.LastIndexByte(data[:n], '\n')+1 : n]
		switch {
		case len(rest) == 0:
		case data[n] == '\n':
			whole++
		default:
			last := got[len(got)-1]
			if last.Kind != verdict.Trouble || !strings.Contains(last.Text, "middle of line") || (whole > 0 && last.At.IsZero()) {
				t.Fatalf("cut at %d: nobody says so: %+v", n, last)
			}
			got = got[:len(got)-1]
		}
		if len(got) != whole {
			t.Fatalf("cut at %d: %d events, want %d", n, len(got), whole)
		}
	}
	var f *fault.Error
	if _, err := OpenEventLog(path); !errors.Is(err, os.ErrExist) || !errors.As(err, &f) {
		t.Errorf("a second run in the same file: %v", err)
	}
	if err := l.Append(events[0]); !errors.As(err, &f) {
		t.Errorf("after Close: %v", err)
	}
	if err := l.Close(); !errors.As(err, &f) {
		t.Errorf("closed twice: %v", err)
	}
	for name, text := range map[string]string{
		"damage in the middle": string(data[:20]) + "\n" + string(data), "no event": "[1]\n", "unknown outcome": `{"outcome": "fine"}` + "\n",
	} {
		if _, err := ReadEvents(strings.NewReader(text)); !errors.As(err, &f) || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadEvents(iotest.ErrReader(errFull)); !errors.Is(err, errFull) {
		t.Errorf("a failing reader: %v", err)
	}
}

type closer struct{ *full }

func (closer) Close() error { return errFull }

// TestEventLogStopsAtTheFirstError: what follows half a line would be read as a
// part of it.
func TestEventLogStopsAtTheFirstError(t *testing.T) {
	room := full(10)
	l := &EventLog{f: closer{&room}}
	first := l.Append(someEvents()[0])
	room = 1 << 20
	if second := l.Append(someEvents()[1]); !errors.Is(first, errFull) || second == nil || room != 1<<20 {
		t.Errorf("%v, then %v", first, second)
	}
	if err := l.Close(); !errors.Is(err, errFull) {
		t.Errorf("Close: %v", err)
	}
}

func TestEventLogConcurrently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	l, err := OpenEventLog(path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				_ = l.Append(someEvents()[2])
			}
		})
	}
	wg.Wait()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := ReadEvents(f); err != nil || len(got) != 400 {
		t.Errorf("%d events, %v", len(got), err)
	}
}
