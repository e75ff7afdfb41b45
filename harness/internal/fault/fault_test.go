// SPDX-License-Identifier: MIT

package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/go-multierror"
)

func TestExitCode(t *testing.T) {
	kernel := &Error{Blame: Kernel, Doing: "compiling"}
	usage := &Error{Blame: Configuration, Doing: "looking up"}
	host := &Error{Blame: Harness, Doing: "starting"}
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"nothing":             {nil, ExitOK},
		"kernel":              {kernel, ExitBuild},
		"test":                {&Error{Blame: Test}, ExitBuild},
		"configuration":       {usage, ExitConfiguration},
		"harness":             {host, ExitHarness},
		"wrapped":             {fmt.Errorf("more: %w", usage), ExitConfiguration},
		"no blame":            {errors.New("x"), ExitHarness},
		"several":             {multierror.Append(kernel, usage), ExitConfiguration},
		"several, wrapped":    {fmt.Errorf("more: %w", multierror.Append(kernel, host, usage)), ExitHarness},
		"blame above several": {&Error{Blame: Configuration, Err: multierror.Append(nil, errors.New("a"), errors.New("b"))}, ExitConfiguration},
		"blame without value": {&Error{}, ExitHarness},
	} {
		if got := ExitCode(tc.err); got != tc.want {
			t.Errorf("%s: exit code %d, want %d", name, got, tc.want)
		}
	}
}

func TestErrorSaysEverything(t *testing.T) {
	e := &Error{
		Blame: Kernel, Doing: "applying the series", Subject: "0001-x.patch",
		Err: errors.New("it does not apply"), Said: "error: patch failed\nerror: really\n", Next: "rebase it",
	}
	want := "applying the series: 0001-x.patch: it does not apply\n    error: patch failed\n    error: really\n  next: rebase it"
	if got := e.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestBlameRoundTrip(t *testing.T) {
	for _, b := range []Blame{Kernel, Test, Configuration, Harness} {
		text, _ := b.MarshalText()
		var back Blame
		if err := back.UnmarshalText(text); err != nil || back != b {
			t.Errorf("%v became %v, %v", b, back, err)
		}
	}
	var b Blame
	if b.UnmarshalText([]byte("nobody")) == nil {
		t.Error("an unknown blame was taken")
	}
}
