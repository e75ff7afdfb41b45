// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
)

// errNoKernel is why something is no kernel tree.
var errNoKernel = errors.New("that is no kernel tree: it has no Kconfig beside a Makefile that states VERSION and PATCHLEVEL")

var versionLine = regexp.MustCompile(`(?m)^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)[ \t]*=[ \t]*(.*?)[ \t\r]*$`)

// kernelVersion puts together what the kernel's top Makefile states, as the
// Makefile itself does.
func kernelVersion(makefile []byte) (string, error) {
	// The four assignments are the first lines; the same names occur below.
	part := map[string]string{}
	for _, m := range versionLine.FindAllSubmatch(makefile, -1) {
		if _, seen := part[string(m[1])]; !seen {
			part[string(m[1])] = string(m[2])
		}
	}
	if part["VERSION"] == "" || part["PATCHLEVEL"] == "" {
		return "", errNoKernel
	}
	version := part["VERSION"] + "." + part["PATCHLEVEL"]
	if part["SUBLEVEL"] != "" {
		version += "." + part["SUBLEVEL"]
	}
	return version + part["EXTRAVERSION"], nil
}

// kernelFolder returns the version of the kernel sources in a folder.
func kernelFolder(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "Kconfig")); err != nil {
		return "", errNoKernel
	}
	makefile, err := os.ReadFile(filepath.Join(dir, "Makefile"))
	if err != nil {
		return "", errNoKernel
	}
	return kernelVersion(makefile)
}

// kernelTree returns the version of the kernel sources in a git tree.
func (s *Store) kernelTree(ctx context.Context, treeish string, objects []string) (string, error) {
	how := Git{Objects: objects}
	names, err := s.Git(ctx, how, "ls-tree", "--name-only", treeish, "Kconfig", "Makefile")
	if err != nil {
		return "", err
	}
	if !bytes.Equal(names, []byte("Kconfig\nMakefile\n")) {
		return "", errNoKernel
	}
	makefile, err := s.Git(ctx, how, "cat-file", "blob", treeish+":Makefile")
	if err != nil {
		return "", err
	}
	return kernelVersion(makefile)
}

// Commit makes the Commit value for a commit in the store.
func (s *Store) Commit(ctx context.Context, id, describe string, objects []string) (Commit, error) {
	top, err := s.line(ctx, Git{Objects: objects}, "rev-parse", "--verify", "--quiet", id+"^{tree}")
	if err != nil {
		return Commit{}, err
	}
	version, err := s.kernelTree(ctx, top, objects)
	if err != nil {
		return Commit{}, err
	}
	return Commit{ID: id, Tree: top, Version: version, Describe: describe, Objects: objects}, nil
}
