// SPDX-License-Identifier: MIT

// Package series turns what people send about (a folder of patches, an mbox,
// a plain diff) into patches in their order, and applies them to a commit. It
// knows nothing of building.
package series

import (
	"time"

	"patchbay/harness/tree"
)

// Series is a list of patches that belong together.
type Series struct {
	// Name is how the user called it: a series name, a path, or "-".
	Name string `json:"name"`
	// Title is the subject of the cover letter, or "".
	Title string `json:"title,omitempty"`
	// Version is the v of [PATCH v2 1/3]; 1 where none is said.
	Version int `json:"version"`
	// Notes say what a reader should know of how it was read, such as that an
	// older version was in the same mbox.
	Notes []string `json:"notes,omitempty"`
	// Patches are in the order in which they apply.
	Patches []Patch `json:"patches"`
}

// Patch is one change, with what becomes of it in the commit.
type Patch struct {
	// File is where it came from: a path, or "message 3 of x.mbox".
	File string `json:"file"`
	// Subject is the first line of the commit message, without [PATCH].
	Subject string `json:"subject"`
	// Author is as in From: "Name <address>".
	Author string `json:"author"`
	// Date is the author's date, in the author's time zone.
	Date time.Time `json:"date"`
	// Body is the rest of the commit message.
	Body string `json:"body,omitempty"`
	// Diff is what git apply takes.
	Diff []byte `json:"-"`
}

// Applied says how one patch went in.
type Applied struct {
	Patch Patch `json:"patch"`
	// Commit is the state after it.
	Commit tree.Commit `json:"commit"`
	// ThreeWay is set if it did not apply as it stands and was merged.
	ThreeWay bool `json:"three_way,omitempty"`
}
