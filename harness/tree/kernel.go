// SPDX-License-Identifier: MIT

package tree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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
func kernelTree(ctx context.Context, how Git, treeish string) (string, error) {
	listed, err := how.line(ctx, "ls-tree", treeish, "Kconfig", "Makefile")
	if err != nil {
		return "", err
	}
	files := 0
	for entry := range strings.Lines(listed) {
		if fields := strings.Fields(entry); len(fields) > 1 && fields[1] == "blob" {
			files++
		}
	}
	if files != 2 {
		return "", errNoKernel
	}
	makefile, err := how.Run(ctx, "cat-file", "blob", treeish+":Makefile")
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
	version, err := kernelTree(ctx, Git{Repository: s.dir, Objects: objects}, top)
	if err != nil {
		return Commit{}, err
	}
	return Commit{ID: id, Tree: top, Version: version, Describe: describe, Objects: objects}, nil
}
