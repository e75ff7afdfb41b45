// SPDX-License-Identifier: MIT

// Package tree brings every kernel source, wherever it comes from, into one
// form: a commit in a git store in the cache, from which plain source folders
// are made. It knows nothing of how sources are configured, built or booted.
package tree

// Commit is one exact state of a source tree.
type Commit struct {
	// ID is the full hash of the commit in the store. The same content on the
	// same parent always has the same ID.
	ID string `json:"id"`
	// Tree is the hash of the commit's tree: all that a build depends on.
	Tree string `json:"tree"`
	// Version is what the top Makefile states: "6.12.117", "7.3.0-rc2".
	Version string `json:"version"`
	// Describe says for people what it is and where it came from.
	Describe string `json:"describe"`
	// Objects are git object folders beside the store's own in which some of
	// the commit's objects live: those of a user's repository. They are only
	// ever read.
	Objects []string `json:"objects,omitempty"`
}

// Source says which sources are wanted. Exactly one of Base, Dir and Tarball
// is set.
type Source struct {
	// Base is a known kernel, from Bases.Find.
	Base *Base
	// Dir is a folder on this machine: a git work tree, a bare repository
	// (with Rev), or plain files.
	Dir string
	// Rev is a revision in Dir, in any form that git understands. Without it
	// what is in Dir now is meant, uncommitted changes included.
	Rev string
	// Tarball is a file, packed with xz, gzip, bzip2, zstd or not at all.
	Tarball string
	// SHA256 is the hexadecimal checksum that Tarball must have; empty if
	// it is not to be checked.
	SHA256 string
}
