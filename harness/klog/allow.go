// SPDX-License-Identifier: MIT

package klog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/hashicorp/go-multierror"

	"patchbay/harness/internal/fault"
)

// maxAllowList bounds the size of an allow list in bytes.
const maxAllowList = 1 << 20

// AllowEntry is one known splat that does not fail a test. Every entry ends
// some day: with a kernel version, at a date, or with what comes first.
type AllowEntry struct {
	// Regex is searched for in a splat's title and in its headline.
	Regex string `yaml:"regex" json:"regex"`
	// Reason says why it is no fault of what is being tested.
	Reason string `yaml:"reason" json:"reason"`
	// Link leads to the report or to the discussion.
	Link string `yaml:"link" json:"link"`
	// Until is the first kernel version without it, as "6.15" or "6.12.40".
	Until string `yaml:"until" json:"until,omitempty"`
	// Expires is the last day on which the entry holds, as "2027-01-31" (UTC).
	Expires string `yaml:"expires" json:"expires,omitempty"`

	re      *regexp.Regexp
	until   version
	expires time.Time // the moment from which it does not hold
}

// AllowList is a list of known splats.
type AllowList struct{ entries []AllowEntry }

// AllowUse says what became of an entry.
type AllowUse struct {
	Entry AllowEntry `json:"entry"`
	// Matches counts the splats that the entry covered. One that never covers
	// any should be taken out of the list.
	Matches int `json:"matches"`
	// Expired says that the entry no longer holds, so that it covered nothing.
	Expired bool `json:"expired,omitempty"`
}

// LoadAllowList reads an allow list:
//
//	allow:
//	  - regex: 'WARNING at net/core/sock\.c in sk_stream_kill_queues'
//	    reason: known upstream, not touched by the series
//	    link: https://lore.kernel.org/...
//	    until: "6.15"        # or
//	    expires: 2027-01-31
//
// A list that cannot be read, is empty or has a faulty entry is an error, a
// *fault.Error that blames the configuration and names every fault: a run must
// stop then, and not pass.
func LoadAllowList(path string) (*AllowList, error) {
	list, err := readAllowList(path)
	if err != nil {
		return nil, &fault.Error{
			Blame: fault.Configuration, Doing: "reading the allow list", Subject: path, Err: err,
			Next: "mend the list, or run without one; each entry needs regex, reason, link, and until or expires",
		}
	}
	return list, nil
}

func readAllowList(path string) (*AllowList, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAllowList+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxAllowList {
		return nil, fmt.Errorf("larger than %d bytes", maxAllowList)
	}
	return parseAllowList(data)
}

func parseAllowList(data []byte) (*AllowList, error) {
	var file struct {
		Allow []AllowEntry `yaml:"allow"`
	}
	in := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := in.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(file.Allow) == 0 {
		return nil, errors.New("it has no entries")
	}
	var more any
	if err := in.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one YAML document")
	}
	var faults *multierror.Error
	for i := range file.Allow {
		if err := file.Allow[i].prepare(); err != nil {
			faults = multierror.Append(faults, fmt.Errorf("entry %d (%q): %w", i+1, file.Allow[i].Regex, err))
		}
	}
	if err := faults.ErrorOrNil(); err != nil {
		return nil, err
	}
	return &AllowList{file.Allow}, nil
}

func (e *AllowEntry) prepare() error {
	var err error
	switch {
	case e.Regex == "":
		return errors.New("no regex")
	case strings.TrimSpace(e.Reason) == "":
		return errors.New("no reason")
	case e.Link == "":
		return errors.New("no link")
	case e.Until == "" && e.Expires == "":
		return errors.New("neither until nor expires")
	}
	if e.re, err = regexp.Compile(e.Regex); err != nil {
		return err
	}
	if e.re.MatchString("") {
		return errors.New("the regex matches anything")
	}
	if u, err := url.Parse(e.Link); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return fmt.Errorf("the link %q is no http address", e.Link)
	}
	if e.Until != "" {
		var ok bool
		if e.until, ok = parseVersion(e.Until); !ok {
			return fmt.Errorf("until: %q is no kernel version", e.Until)
		}
	}
	if e.Expires != "" {
		day, err := time.Parse(time.DateOnly, e.Expires)
		if err != nil {
			return fmt.Errorf("expires: %q is no date like 2027-01-31", e.Expires)
		}
		e.expires = day.AddDate(0, 0, 1)
	}
	return nil
}

// Allow marks the splats that the list covers, in place, by their Allowed, and
// returns what became of each entry, in the order of the list. kernel is the
// version under test (as uname -r prints it) and now the time of the run; with
// a kernel version that cannot be understood, entries that have until do not
// hold. The first entry that holds and matches a splat covers it. A splat that
// the kernel died of is never covered.
func Allow(list *AllowList, splats []Splat, kernel string, now time.Time) []AllowUse {
	if list == nil {
		return nil
	}
	tested, known := parseVersion(kernel)
	uses := make([]AllowUse, len(list.entries))
	for i, e := range list.entries {
		uses[i].Entry = e
		uses[i].Expired = (e.Until != "" && (!known || !tested.before(e.until))) ||
			(e.Expires != "" && !now.Before(e.expires))
	}
	for i := range splats {
		s := &splats[i]
		if s.Fatal {
			continue
		}
		for j := range uses {
			if e := &uses[j].Entry; !uses[j].Expired && (e.re.MatchString(s.Title) || e.re.MatchString(s.Line)) {
				s.Allowed = e.Reason + " (" + e.Link + ")"
				uses[j].Matches++
				break
			}
		}
	}
	return uses
}

// version is a kernel version, without what follows the numbers: a release
// candidate counts as the release.
type version [3]int

var versionText = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,5}))?(?:[-+~_. ]|$)`)

func parseVersion(s string) (version, bool) {
	var v version
	m := versionText.FindStringSubmatch(s)
	if m == nil {
		return v, false
	}
	for i := range v {
		if m[i+1] != "" {
			// The expression admits short numbers only.
			v[i], _ = strconv.Atoi(m[i+1])
		}
	}
	return v, true
}

func (v version) before(w version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}
