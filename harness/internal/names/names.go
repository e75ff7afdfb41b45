// SPDX-License-Identifier: MIT

// Package names helps a user who mistyped one.
package names

import (
	"errors"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"patchbay/harness/internal/fault"
)

// listed is how many known names an error spells out.
const listed = 12

// Unknown returns the configuration error for a name that is not among the
// known ones; it suggests the nearest.
func Unknown(kind, name string, known []string) error {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	e := &fault.Error{
		Blame: fault.Configuration, Doing: "looking up a " + kind, Subject: name,
		Err: errors.New("there is none of that name"),
	}
	switch near := Nearest(name, known); {
	case near != "":
		e.Next = "did you mean " + near + "?"
	case len(known) == 0:
		e.Next = "none is known here"
	case len(known) <= listed:
		e.Next = "known: " + strings.Join(known, ", ")
	default:
		e.Next = "bin/patchbay list shows them all"
	}
	return e
}

// Nearest returns the known name that differs least, or "" if none is near: a
// third of its letters may differ.
func Nearest(name string, known []string) string {
	best, least := "", len(name)/3+1
	for _, k := range known {
		if d := levenshtein.ComputeDistance(strings.ToLower(name), strings.ToLower(k)); d < least || (d == least && best == "") {
			best, least = k, d
		}
	}
	return best
}
