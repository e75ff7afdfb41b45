// SPDX-License-Identifier: MIT

package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"patchbay/harness/internal/fault"
	"patchbay/harness/verdict"
)

// EventLog keeps a run's events in a file, one JSON object a line.
type EventLog struct {
	mu     sync.Mutex
	f      io.WriteCloser
	path   string
	failed error
}

// OpenEventLog makes the file, which must not exist: the events of two runs in
// one file would be nobody's.
func OpenEventLog(path string) (*EventLog, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, OutError("making the event log", path, err)
	}
	return &EventLog{f: f, path: path}, nil
}

// Append writes the event into the file before it returns. After an error the
// file may end in half a line, so that nothing more is written to it.
func (l *EventLog) Append(e verdict.Event) error {
	data, err := marshal(e, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	if err == nil {
		_, err = l.f.Write(data)
	}
	if err != nil {
		l.failed = OutError("writing to the event log", l.path, err)
	}
	return l.failed
}

// Close closes the file.
func (l *EventLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.f.Close(); err != nil {
		return OutError("closing the event log", l.path, err)
	}
	return nil
}

// ReadEvents reads what an EventLog wrote. A last line that was cut short, as a
// kill does, is left out, and a trouble event at the end says so.
func ReadEvents(r io.Reader) ([]verdict.Event, error) {
	var events []verdict.Event
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return events, eventError(n, err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			var e verdict.Event
			parseErr := json.Unmarshal(line, &e)
			switch {
			case parseErr == nil:
				events = append(events, e)
			case ended:
				cut := verdict.Event{Kind: verdict.Trouble, Text: fmt.Sprintf("the event log ends in the middle of line %d (%d bytes were left out): its writer was killed", n, len(line))}
				if len(events) > 0 {
					cut.At, cut.Boot = events[len(events)-1].At, events[len(events)-1].Boot
				}
				events = append(events, cut)
			default:
				return events, eventError(n, parseErr)
			}
		}
		if ended {
			return events, nil
		}
	}
}

func eventError(line int, err error) error {
	return &fault.Error{
		Blame: fault.Configuration, Doing: "reading the event log", Subject: fmt.Sprintf("line %d", line), Err: err,
		Next: "take the events.jsonl of a run that is whole",
	}
}
