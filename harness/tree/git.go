// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"patchbay/harness/internal/fault"
)

// Git says how one git command is run. Nothing of the user's git configuration
// reaches it.
type Git struct {
	// Repository is the git folder; empty for none. Store.Git sets it.
	Repository string
	// Dir is where the command runs; empty for here.
	Dir string
	// WorkTree is the folder whose files are meant, if any.
	WorkTree string
	// Index is the index file; empty for the repository's own.
	Index string
	// Objects are further object folders to read from. A command that writes
	// objects must not be given any: git renews the times of an object that
	// it finds there, and those folders are not ours to change.
	Objects []string
	// Env has further variables as KEY=VALUE.
	Env []string
	// Stdin is what the command reads; nil for nothing.
	Stdin io.Reader

	// hold is passed on to the command so that the lock on it lasts as long
	// as the command, even if this process dies first.
	hold *os.File
	// storing is where the command stores and finds objects if not in the
	// repository.
	storing string
	// own lets the user's configuration through.
	own bool
}

// GitError is a git command that failed.
type GitError struct {
	Args   []string // without "git"
	Stderr string   // what it said, without the last newline
	Code   int      // its exit code, or -1
	Err    error    // from exec
}

// Error gives the command's name and what it said.
func (e *GitError) Error() string {
	name := "git"
	if len(e.Args) > 0 {
		name += " " + e.Args[0]
	}
	if e.Stderr == "" {
		return fmt.Sprintf("%s: %v", name, e.Err)
	}
	return fmt.Sprintf("%s: %s", name, e.Stderr)
}

// Unwrap returns the error from exec.
func (e *GitError) Unwrap() error { return e.Err }

// The identity and time of whatever patchbay itself commits. Fixed, so that
// the same content has the same commit ID everywhere and at any time.
const (
	identity = "patchbay"
	epoch    = "1000000000 +0000"
)

// Run runs git and returns what it wrote to its standard output. The error is
// a *GitError, or the context's.
func (g Git) Run(ctx context.Context, args ...string) ([]byte, error) {
	var out bytes.Buffer
	cmd := g.command(ctx, args...)
	cmd.Stdout = &out
	err := g.finish(ctx, cmd, cmd.Run())
	return out.Bytes(), err
}

// line is Run for commands that print one line.
func (g Git) line(ctx context.Context, args ...string) (string, error) {
	out, err := g.Run(ctx, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

func (g Git) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = g.Dir
	cmd.Env = g.environ()
	cmd.Stdin = g.Stdin
	cmd.Stderr = new(bytes.Buffer)
	if g.hold != nil {
		cmd.ExtraFiles = []*os.File{g.hold}
	}
	// SIGTERM lets git remove its lock files and temporary packs.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (g Git) finish(ctx context.Context, cmd *exec.Cmd, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	code := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	said := strings.TrimRight(cmd.Stderr.(*bytes.Buffer).String(), "\n")
	return &GitError{Args: cmd.Args[1:], Stderr: said, Code: code, Err: err}
}

func (g Git) environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GIT_") {
			env = append(env, kv)
		}
	}
	env = append(
		env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1", "GIT_ATTR_NOSYSTEM=1", "GIT_LITERAL_PATHSPECS=1",
		"GIT_AUTHOR_NAME="+identity, "GIT_AUTHOR_EMAIL="+identity, "GIT_AUTHOR_DATE="+epoch,
		"GIT_COMMITTER_NAME="+identity, "GIT_COMMITTER_EMAIL="+identity, "GIT_COMMITTER_DATE="+epoch,
	)
	if !g.own {
		env = append(env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	}
	set := func(key, value string) {
		if value != "" {
			env = append(env, key+"="+value)
		}
	}
	// An explicit GIT_DIR also spares git's check of who owns a repository,
	// which would refuse a tree that belongs to someone else.
	set("GIT_DIR", g.Repository)
	set("GIT_WORK_TREE", g.WorkTree)
	set("GIT_INDEX_FILE", g.Index)
	set("GIT_OBJECT_DIRECTORY", g.storing)
	quoted := make([]string, len(g.Objects))
	for i, dir := range g.Objects {
		quoted[i] = quoteC(dir)
	}
	set("GIT_ALTERNATE_OBJECT_DIRECTORIES", strings.Join(quoted, ":"))
	if g.Repository == "" {
		// No repository is meant: do not let git find one above.
		set("GIT_CEILING_DIRECTORIES", "/")
	}
	return append(env, g.Env...)
}

// quoteC quotes a path as git and fast-import read it.
func quoteC(path string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(path) {
		switch c := path[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// The oldest git that can do what is asked of it here: 2.32 brought
// `git apply --cached --3way` and GIT_CONFIG_GLOBAL.
const oldestMajor, oldestMinor = 2, 32

// checkGit says whether git is there and new enough.
func checkGit(ctx context.Context) error {
	said, err := Git{}.line(ctx, "version")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		fields := strings.SplitN(strings.TrimPrefix(said, "git version "), ".", 3)
		if len(fields) < 2 {
			fields = []string{"0", "0"}
		}
		major, _ := strconv.Atoi(fields[0])
		minor, _ := strconv.Atoi(fields[1])
		if major > oldestMajor || major == oldestMajor && minor >= oldestMinor {
			return nil
		}
		err = fmt.Errorf("it is too old: %d.%d or newer is needed", oldestMajor, oldestMinor)
	}
	return &fault.Error{
		Blame: fault.Harness, Doing: "looking for git", Said: said, Err: err,
		Next: "install git, or run bin/setup",
	}
}
