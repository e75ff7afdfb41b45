// SPDX-License-Identifier: MIT

package kbuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"patchbay/harness/internal/fault"
)

// versioned are the tools whose version can change what comes out.
var versioned = []string{"gcc", "ld", "pahole", "make"}

// needed are the tools that a build cannot do without. A missing pahole is
// told by the check of the configuration: only BTF needs it.
var needed = []string{"make", "gcc", "ld", "flex", "bison", "bc", "perl", "python3", "nice"}

// toolVersions asks the tools for their versions, once.
func (b *Builder) toolVersions(ctx context.Context) ([]string, error) {
	b.toolchain.Lock()
	defer b.toolchain.Unlock()
	if b.toolchain.versions != nil {
		return b.toolchain.versions, nil
	}
	var versions []string
	for _, name := range versioned {
		if _, err := exec.LookPath(name); err != nil {
			versions = append(versions, name+": missing")
			continue
		}
		cmd := exec.CommandContext(ctx, name, "--version")
		cmd.Env = environment()
		out, err := cmd.Output()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		line, _, _ := strings.Cut(string(out), "\n")
		if err != nil || line == "" {
			return nil, &fault.Error{
				Blame: fault.Harness, Doing: "asking for a version", Subject: name, Err: err,
				Said: string(out), Next: "see why `" + name + " --version` fails, or install it again",
			}
		}
		versions = append(versions, name+": "+strings.TrimSpace(line))
	}
	b.toolchain.versions = versions
	return versions, nil
}

// needTools says which tools are missing, all of them.
func needTools() error {
	var missing []string
	for _, name := range needed {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return nil
	}
	return &fault.Error{
		Blame: fault.Harness, Doing: "building a kernel",
		Err:  fmt.Errorf("not found on PATH: %s", strings.Join(missing, ", ")),
		Next: "bin/setup installs what is missing",
	}
}

// passed are the variables that builds get from the environment; those that
// end in an underscore are prefixes. All others, above all MAKEFLAGS, ARCH,
// CROSS_COMPILE and KBUILD_*, would change what is built behind the key's back.
// A ccache that stands in for gcc on PATH works, and its settings are heeded.
var passed = []string{"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CCACHE_"}

// fixed are variables that make builds reproducible.
var fixed = []string{
	"LC_ALL=C",
	"KBUILD_BUILD_TIMESTAMP=Thu Jan  1 00:00:00 UTC 1970",
	"KBUILD_BUILD_USER=patchbay",
	"KBUILD_BUILD_HOST=patchbay",
	"KBUILD_BUILD_VERSION=1",
	// Set and empty, it keeps a "+" out of the release name.
	"LOCALVERSION=",
}

// environment is what make and the tools see.
func environment() []string {
	env := slices.Clone(fixed)
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(passed, func(p string) bool {
			return name == p || strings.HasSuffix(p, "_") && strings.HasPrefix(name, p)
		}) {
			env = append(env, kv)
		}
	}
	return env
}

// keyOf derives an artifact's key from all that decides what it will be. The
// resolved configuration is a function of these.
func keyOf(treeHash string, frags *fragments, tools []string, target arch) string {
	var b bytes.Buffer
	add := func(values ...string) {
		// With its length before it, no value can pass for two others.
		fmt.Fprintf(&b, "%d\n", len(values))
		for _, v := range values {
			fmt.Fprintf(&b, "%d %s\n", len(v), v)
		}
	}
	add(formatVersion, treeHash, target.name, target.target)
	add(fixed...)
	add(tools...)
	add(frags.contents...)
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:])
}
