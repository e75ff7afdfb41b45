// SPDX-License-Identifier: MIT

package series

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"patchbay/harness/internal/fault"
	"patchbay/harness/tree"
)

// Apply applies the series one after the other on base and returns the last
// commit, with every step in between. Author, date, subject and body become
// those of the commits; the same series on the same base always gives the same
// IDs. No work tree is involved. If a patch does not apply, nothing is left
// behind and the error is blamed on the kernel.
func Apply(ctx context.Context, store *tree.Store, base tree.Commit, all ...Series) (tree.Commit, []Applied, error) {
	if len(all) == 0 {
		return base, nil, nil
	}
	scratch, err := store.TempDir()
	if err != nil {
		return tree.Commit{}, nil, err
	}
	defer os.RemoveAll(scratch)
	if err := store.Adopt(ctx, base); err != nil {
		return tree.Commit{}, nil, err
	}
	a := applier{store: store, index: filepath.Join(scratch, "index")}
	ref, count := memoryRef(base, all)
	known := a.remembered(ctx, ref, base, count)
	if known == nil {
		if _, err := store.Git(ctx, tree.Git{Index: a.index, Objects: base.Objects}, "read-tree", base.ID); err != nil {
			return tree.Commit{}, nil, a.failed(ctx, err)
		}
	}
	clean := true
	now, done := base, []Applied(nil)
	for _, s := range all {
		under := now.Describe
		for i, p := range s.Patches {
			var step Applied
			if known != nil {
				step.Commit, err = store.Commit(ctx, known[len(done)], "", now.Objects)
			} else {
				step, err = a.patch(ctx, now, s, i)
			}
			if err != nil {
				return tree.Commit{}, nil, err
			}
			clean = clean && !step.ThreeWay
			step.Patch = p
			step.Commit.Describe = fmt.Sprintf("%s + %s", under, called(s.Name))
			if i+1 < len(s.Patches) {
				step.Commit.Describe += fmt.Sprintf(" up to patch %d of %d", i+1, len(s.Patches))
			}
			now, done = step.Commit, append(done, step)
		}
	}
	if known == nil && clean && count > 0 {
		if _, err := store.Git(ctx, tree.Git{}, "update-ref", ref, now.ID); err != nil {
			return tree.Commit{}, nil, a.failed(ctx, err)
		}
	}
	return now, done, nil
}

// memoryRef names the ref that remembers the series applied on base, and counts
// their patches.
func memoryRef(base tree.Commit, all []Series) (ref string, count int) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n", base.ID)
	for _, s := range all {
		for _, p := range s.Patches {
			count++
			for _, part := range []string{p.Author, p.Date.Format(time.RFC3339), p.Subject, p.Body, string(p.Diff)} {
				fmt.Fprintf(sum, "%d\n%s", len(part), part)
			}
		}
	}
	return "refs/applied/" + hex.EncodeToString(sum.Sum(nil)), count
}

// remembered returns the commits of an earlier application of the same series
// on the same base, or nil. Reading the index of a whole kernel and writing its
// tree takes a second that a run with nothing to build need not spend.
func (a applier) remembered(ctx context.Context, ref string, base tree.Commit, count int) []string {
	if count == 0 {
		return nil
	}
	out, err := a.store.Git(ctx, tree.Git{}, "rev-list", "--reverse", ref, "^"+base.ID)
	ids := strings.Fields(string(out))
	if err != nil || len(ids) != count {
		return nil
	}
	return ids
}

// applier holds the state between patches: an index without files.
type applier struct {
	store *tree.Store
	index string
}

func (a applier) failed(ctx context.Context, err error) error {
	var e *fault.Error
	if ctx.Err() != nil || errors.As(err, &e) {
		return err
	}
	return &fault.Error{
		Blame: fault.Harness, Doing: "applying the series", Err: err,
		Next: "see to it that the disk is not full and the repository that the sources are from is still there",
	}
}

// patch applies the i-th patch of s on now.
func (a applier) patch(ctx context.Context, now tree.Commit, s Series, i int) (Applied, error) {
	p := s.Patches[i]
	merged, err := a.apply(ctx, now, s, i)
	if err != nil {
		return Applied{}, err
	}
	// The blobs of files that no patch touches may live in a user's objects.
	out, err := a.store.Git(ctx, tree.Git{Index: a.index}, "write-tree", "--missing-ok")
	if err != nil {
		return Applied{}, a.failed(ctx, err)
	}
	top := strings.TrimSpace(string(out))
	if top == now.Tree {
		return Applied{}, &fault.Error{
			Blame: fault.Kernel, Doing: "applying the series " + called(s.Name), Subject: which(s, i),
			Err:  errors.New("it changes nothing: the sources already have what it does"),
			Next: "leave the series out, or choose sources without it; the sources are " + now.Describe,
		}
	}
	message := p.Subject + "\n"
	if p.Body != "" {
		message += "\n" + p.Body + "\n"
	}
	name, address, _ := strings.Cut(strings.TrimSuffix(p.Author, ">"), " <")
	if strings.TrimSpace(name) == "" {
		name = address
	}
	out, err = a.store.Git(ctx, tree.Git{
		Env: []string{
			"GIT_AUTHOR_NAME=" + name, "GIT_AUTHOR_EMAIL=" + address,
			fmt.Sprintf("GIT_AUTHOR_DATE=@%d %s", p.Date.Unix(), p.Date.Format("-0700")),
		},
		Stdin: strings.NewReader(message),
	}, "commit-tree", "-F", "-", "-p", now.ID, top)
	if err != nil {
		return Applied{}, a.failed(ctx, err)
	}
	c, err := a.store.Commit(ctx, strings.TrimSpace(string(out)), "", now.Objects)
	if err != nil {
		return Applied{}, a.failed(ctx, err)
	}
	return Applied{Commit: c, ThreeWay: merged}, nil
}

// apply brings the patch into the index, as it stands or else by a merge.
func (a applier) apply(ctx context.Context, now tree.Commit, s Series, i int) (merged bool, err error) {
	p := s.Patches[i]
	files, _, parsed := gitdiff.Parse(bytes.NewReader(p.Diff))
	var blobs []string
	for _, f := range files {
		if f.OldName != "" {
			blobs = append(blobs, now.ID+":"+f.OldName)
		}
	}
	if err := a.store.Adopt(ctx, now, blobs...); err != nil {
		return false, err
	}
	try := func(args ...string) error {
		how := tree.Git{Index: a.index, Stdin: bytes.NewReader(p.Diff)}
		_, err := a.store.Git(ctx, how, append([]string{"apply", "--cached", "--whitespace=nowarn"}, append(args, "-")...)...)
		return err
	}
	first := try()
	if first == nil || ctx.Err() != nil {
		return false, first
	}
	// The files as the author had them make a merge possible, if they are
	// anywhere.
	blobs = blobs[:0]
	for _, f := range files {
		if f.OldOIDPrefix != "" {
			blobs = append(blobs, f.OldOIDPrefix)
		}
	}
	if err := a.store.Adopt(ctx, now, blobs...); err != nil {
		return false, err
	}
	second := try("--3way")
	if second == nil || ctx.Err() != nil {
		return true, second
	}
	return false, a.refused(now, s, i, files, parsed, first, second)
}

// which names the i-th patch of a series for people.
func which(s Series, i int) string {
	return fmt.Sprintf("patch %d of %d, %q (%s)", i+1, len(s.Patches), s.Patches[i].Subject, s.Patches[i].File)
}

// refused makes the error for a patch that does not apply. parsed is why it
// cannot be read as a diff at all, or nil.
func (a applier) refused(now tree.Commit, s Series, i int, files []*gitdiff.File, parsed, first, second error) error {
	var said []string
	seen := map[string]bool{}
	for _, err := range []error{first, second} {
		var g *tree.GitError
		// Git's 128 means that it could not work, or that a diff is broken.
		if !errors.As(err, &g) || g.Code < 0 || g.Code > 127 && parsed == nil {
			return a.failed(context.Background(), err)
		}
		for line := range strings.Lines(g.Stderr) {
			if line = strings.TrimSpace(line); line != "" && !seen[line] {
				seen[line] = true
				said = append(said, line)
			}
		}
	}
	reason, next := "it does not apply", "rebase the series, or choose sources that it fits; they are "+now.Describe
	if parsed != nil {
		reason, next = fmt.Sprintf("it is damaged: %v", parsed), "get the patch again; a mail program may have changed its lines"
	} else if found := places(files, first.Error()); len(found) > 0 {
		reason += ": " + strings.Join(found, "; ")
	}
	return &fault.Error{
		Blame: fault.Kernel, Doing: "applying the series " + called(s.Name), Subject: which(s, i),
		Err: errors.New(reason), Said: strings.Join(said, "\n"),
		Next: next,
	}
}

var patchFailed = regexp.MustCompile(`(?m)error: patch failed: (.*):(\d+)$`)

// places turns git's "patch failed: FILE:LINE" into the hunk that begins at
// that line of the old file.
func places(files []*gitdiff.File, said string) []string {
	var found []string
	for _, m := range patchFailed.FindAllStringSubmatch(said, -1) {
		place := m[1] + ", line " + m[2]
		line, _ := strconv.ParseInt(m[2], 10, 64)
		for _, f := range files {
			if f.OldName != m[1] {
				continue
			}
			for n, frag := range f.TextFragments {
				if frag.OldPosition == line {
					place = fmt.Sprintf("%s, hunk %d of %d (%s)", m[1], n+1, len(f.TextFragments), strings.TrimSpace(frag.Header()))
					break
				}
			}
		}
		found = append(found, place)
	}
	return found
}
