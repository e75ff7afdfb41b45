// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"patchbay/harness/doctor"
	"patchbay/harness/guest"
	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/internal/progress"
	"patchbay/harness/kbuild"
	"patchbay/harness/klog"
	"patchbay/harness/plan"
	"patchbay/harness/report"
	"patchbay/harness/run"
	"patchbay/harness/verdict"
)

// maxBoots bounds how often a cell's guest is started because one ended early.
const maxBoots = 10

type runFlags struct {
	sourceFlags
	tests   []string
	out     string
	kvm     string
	allow   string
	verbose bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Build a kernel, boot it, run the tests, say what passed",
		Long: `Resolve the kernel sources, apply the series, build the kernel, its libbpf and
the tests, boot a guest, run the tests in it, and report. What was built before
is not built again.

The results are in OUT/latest: results.json, junit.xml, kernel.log, console.log,
events.jsonl, kernel.config and commands.txt.

` + exitCodes,
		Example: `  patchbay run --test sockmap_copy                one sub-test
  patchbay run --test 'cpuaffinity' --series ~/v2.mbox
  patchbay run --kdir ~/src/linux --rev v6.12 --series none`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.run(cmd, &f)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&f.tests, "test", nil, "suite, test or sub-test to run, by exact name or glob; may be repeated\n(default: all suites of the vmconfig)")
	flags.StringVar(&f.out, "out", "out", "folder for the results; each run gets its own below it")
	flags.StringVar(&f.kvm, "kvm", "auto", "auto: KVM where /dev/kvm works; on: fail without it; off: emulate")
	flags.StringVar(&f.allow, "allow", "", "file of known splats (see harness/klog)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "show the output of passing tests too")
	return cmd
}

// cell is one run of patchbay run under way.
type cell struct {
	app    *app
	flags  *runFlags
	job    *job
	dir    string
	accel  guest.Accel
	allow  *klog.AllowList
	live   *report.Live
	result *verdict.Cell
	began  time.Time
	// scratch is a folder of this run alone, gone when it is over.
	scratch string
	// files are the test programs that the guest is given.
	files []guest.File
}

func (a *app) run(cmd *cobra.Command, f *runFlags) error {
	ctx := cmd.Context()
	j, err := f.check(cmd)
	if err != nil {
		return err
	}
	c := &cell{app: a, flags: f, job: j, began: time.Now()}
	if err := c.choose(); err != nil {
		return err
	}
	if c.dir, err = makeRunDir(f.out, c.began); err != nil {
		return err
	}
	c.live = report.NewLive(a.stderr, liveOptions(a.stderr))
	c.result = &verdict.Cell{
		ID: j.label(), Base: j.name, Series: j.series, Config: j.config.Name,
		CPUs: j.config.CPUs, Memory: int64(j.config.Memory), Accel: c.accel.String(), Tests: []verdict.Test{},
	}
	versions := newVersions(ctx)
	err = c.work(ctx)
	c.live.Close()
	if err != nil {
		c.result.Failure = verdict.NewFailure(err)
		c.result.Outcome, c.result.Reason = failureOutcome(ctx, err), strings.SplitN(err.Error(), "\n", 2)[0]
	}
	result := &verdict.Run{
		Schema: verdict.SchemaVersion, ID: filepath.Base(c.dir), Started: c.began, Duration: time.Since(c.began),
		Command: append([]string{"patchbay"}, os.Args[1:]...), Host: describeHost(), Versions: versions.wait(c.result),
		Cells: []verdict.Cell{*c.result},
	}
	result.ExitCode = result.Exit()
	if ctx.Err() != nil {
		// Nobody may take half a run for a whole one.
		result.ExitCode = fault.ExitHarness
	}
	if err := report.WriteAll(c.dir, result); err != nil {
		fmt.Fprintf(a.stderr, "patchbay: %v\n", err)
		result.ExitCode = fault.ExitHarness
	}
	if err := pointLatest(c.dir); err != nil {
		fmt.Fprintf(a.stderr, "patchbay: %v\n", err)
	}
	options := textOptions(a.stdout)
	options.Verbose = f.verbose
	if err := report.WriteText(a.stdout, result, options); err != nil {
		fmt.Fprintf(a.stderr, "patchbay: writing the report: %v\n", err)
		result.ExitCode = fault.ExitHarness
	}
	fmt.Fprintf(a.stdout, "results in %s\n", filepath.Join(filepath.Dir(c.dir), "latest"))
	if result.ExitCode != fault.ExitOK {
		return exitError(result.ExitCode)
	}
	return nil
}

// failureOutcome is the outcome of a cell that has no verdict.
func failureOutcome(ctx context.Context, err error) verdict.Outcome {
	if ctx.Err() == nil && fault.ExitCode(err) == fault.ExitBuild {
		return verdict.Build
	}
	return verdict.Infra
}

// choose settles what needs no building: the accelerator and the allow list.
func (c *cell) choose() error {
	var faults *multierror.Error
	accel, why := guest.Detect()
	switch c.flags.kvm {
	case "auto":
	case "on":
		if accel != guest.KVM {
			faults = multierror.Append(faults, usage("--kvm on", errors.New(why), "bin/patchbay doctor says how to mend it"))
		}
	case "off":
		accel = guest.TCG
	default:
		faults = multierror.Append(faults, usage("--kvm "+c.flags.kvm, errors.New("it is neither auto nor on nor off"), "leave it out for auto"))
	}
	c.accel = accel
	if c.flags.allow != "" {
		list, err := klog.LoadAllowList(c.flags.allow)
		if err != nil {
			faults = multierror.Append(faults, err)
		}
		c.allow = list
	}
	if err := faults.ErrorOrNil(); err != nil {
		return err
	}
	if accel == guest.TCG && c.flags.kvm == "auto" {
		fmt.Fprintf(c.app.stderr, "patchbay: no KVM (%s), so the guest is emulated and deadlines are stretched\n", why)
	}
	return nil
}

// phase measures a stretch of the cell's time.
func (c *cell) phase(name string, begin time.Time, cached bool) {
	c.result.Phases = append(c.result.Phases, verdict.Phase{Name: name, Duration: time.Since(begin), Cached: cached})
}

// work takes the cell through all rooms. The error says why there is no
// verdict; with one, the result is complete.
func (c *cell) work(ctx context.Context) error {
	scratch, remove, err := keeper.TempDir("patchbay-")
	if err != nil {
		return &fault.Error{
			Blame: fault.Harness, Doing: "making a folder for test programs and initramfs", Subject: os.TempDir(), Err: err,
			Next: "check free space and permissions there, or set TMPDIR",
		}
	}
	defer remove()
	c.scratch = scratch
	artifact, tests, err := c.build(ctx)
	if err != nil {
		return err
	}
	if err := c.keepConfig(artifact); err != nil {
		return err
	}
	return c.boot(ctx, artifact, tests)
}

// build makes the kernel and the test programs side by side. The programs take
// seconds and the kernel may take minutes: what is wrong with them, with the
// choice among them, or with what shall boot the kernel, is not kept until then.
func (c *cell) build(parent context.Context) (artifact *kbuild.Artifact, tests []run.Suite, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	var (
		kernelErr, testsErr, toolsErr error
		wait                          sync.WaitGroup
	)
	wait.Go(func() {
		if toolsErr = doctor.Require(ctx, "command:vng", "command:qemu-system-x86_64"); toolsErr != nil {
			cancel()
		}
	})
	wait.Go(func() { artifact, kernelErr = c.kernel(ctx) })
	wait.Go(func() {
		if tests, testsErr = c.tests(ctx); testsErr != nil {
			cancel()
		}
	})
	wait.Wait()
	if parent.Err() != nil {
		return nil, nil, interrupted(parent)
	}
	return artifact, tests, together(kernelErr, testsErr, toolsErr)
}

// together joins independent failures; one alone stays what it is. What was
// only cancelled because of another is none.
func together(errs ...error) error {
	var all *multierror.Error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			all = multierror.Append(all, err)
		}
	}
	if all != nil && len(all.Errors) == 1 {
		return all.Errors[0]
	}
	return all.ErrorOrNil()
}

// kernel makes the kernel and libbpf.
func (c *cell) kernel(ctx context.Context) (*kbuild.Artifact, error) {
	news := progress.Func(c.live.Progress)
	begin := time.Now()
	store, commit, all, applied, err := c.job.prepare(ctx, c.app, news)
	if err != nil {
		return nil, err
	}
	c.result.Source, c.result.Commit, c.result.Tree = commit.Describe, commit.ID, commit.Tree
	for _, s := range all {
		for _, note := range s.Notes {
			c.result.Trouble = append(c.result.Trouble, s.Name+": "+note)
		}
	}
	for _, p := range applied {
		c.result.Patches = append(c.result.Patches, verdict.Patch{Subject: p.Patch.Subject, Author: p.Patch.Author, Commit: p.Commit.ID})
	}
	c.phase("source", begin, false)
	begin = time.Now()
	builder := &kbuild.Builder{CacheDir: c.job.cache, Sources: store, News: news, Jobs: c.job.jobs}
	artifact, err := builder.Kernel(ctx, kbuild.Request{Commit: commit, Fragments: c.job.config.Fragments})
	if err != nil {
		return nil, err
	}
	c.result.Artifact = artifact.Key
	c.phase("kernel", begin, artifact.Cached)
	return artifact, nil
}

func interrupted(ctx context.Context) error {
	return &fault.Error{Blame: fault.Harness, Doing: "running", Err: context.Cause(ctx), Next: "start it again: what was finished is kept"}
}

// tests makes the test programs and chooses what to run of what there is.
func (c *cell) tests(ctx context.Context) ([]run.Suite, error) {
	builder := &kbuild.Builder{CacheDir: c.job.cache, News: c.live.Progress}
	suites, err := builder.Suites(ctx, c.job.project.root, c.scratch, nil)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	byName := map[string]kbuild.Suite{}
	var names []string
	for _, s := range suites {
		byName[s.Name] = s
		names = append(names, s.Name)
		if len(c.flags.tests) > 0 || slices.Contains(c.job.config.Suites, s.Name) {
			all[s.Name] = s.Tests
		}
	}
	chosen, err := plan.Choose(all, c.flags.tests)
	if err != nil {
		return nil, err
	}
	var tests []run.Suite
	for _, name := range names {
		if len(chosen[name]) == 0 {
			continue
		}
		tests = append(tests, run.Suite{
			Suite: verdict.Suite{Name: name, Tests: chosen[name]},
			Path:  "/tests/" + name, SelfMarking: byName[name].SelfMarking,
		})
	}
	for _, name := range c.job.config.Suites {
		if len(c.flags.tests) == 0 && len(chosen[name]) == 0 {
			return nil, &fault.Error{
				Blame: fault.Configuration, Doing: "choosing tests", Subject: "suite " + name,
				Err:  fmt.Errorf("vmconfig %s names it, and it has no tests", c.job.config.Name),
				Next: "bin/patchbay list tests shows what there is",
			}
		}
	}
	for _, t := range tests {
		c.files = append(c.files, guest.File{Path: t.Path, Source: byName[t.Name].Binary})
	}
	return tests, nil
}

// keepConfig puts the resolved kernel configuration beside the results.
func (c *cell) keepConfig(artifact *kbuild.Artifact) error {
	data, err := os.ReadFile(artifact.Config)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "kernel.config"), data, 0o644)
	}
	if err != nil {
		return report.OutError("keeping the kernel configuration", c.dir, err)
	}
	return nil
}

// boot runs the tests in guests and judges what happened.
func (c *cell) boot(ctx context.Context, artifact *kbuild.Artifact, suites []run.Suite) error {
	initrd := filepath.Join(c.scratch, "initrd")
	agent, err := agentBinary(c.job.project)
	if err != nil {
		return err
	}
	if err := guest.WriteInitrd(initrd, agent, c.files); err != nil {
		return err
	}
	log, err := report.OpenEventLog(filepath.Join(c.dir, "events.jsonl"))
	if err != nil {
		return err
	}
	scale := plan.Scale(c.accel == guest.KVM, loadAverage(), hostCPUs())
	stretch := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }
	deadlines := c.job.config.Deadlines

	var (
		events  []verdict.Event
		logErr  error
		begin   = time.Now()
		hello   time.Time
		present *guest.Guest
	)
	runErr := run.Run(ctx, run.Cell{
		Suites: suites,
		Deadlines: run.Deadlines{
			Boot: stretch(deadlines.Boot), Test: stretch(deadlines.Test), Suite: stretch(deadlines.Suite),
		},
		Scale:    scale,
		MaxBoots: maxBoots,
		Boot: func(ctx context.Context, n int) (run.Guest, error) {
			g, err := guest.Start(ctx, guest.Spec{
				Kernel: artifact.Image, Initrd: initrd, CPUs: c.job.config.CPUs, Memory: int64(c.job.config.Memory),
				Accel: c.accel, Append: c.job.config.Append,
				Console: c.console("console", n), Serial: c.console("serial", n),
			})
			if err != nil {
				// A typed nil must not become an interface that is not nil.
				return nil, err
			}
			present = g
			c.result.VNG = g.VNG
			return g, nil
		},
		Consoles: func(n int) []string { return []string{c.console("console", n), c.console("serial", n)} },
	}, func(e verdict.Event) {
		if e.Kind == verdict.Hello && hello.IsZero() {
			hello = e.At
			c.phase("boot", begin, false)
		}
		if e.Kind == verdict.Hello {
			c.result.QEMU = present.QEMU()
		}
		events = append(events, e)
		if err := log.Append(e); err != nil && logErr == nil {
			logErr = err
		}
		c.live.Event(e)
	})
	if !hello.IsZero() {
		begin = hello
	}
	c.phase("tests", begin, false)
	if err := log.Close(); err != nil && logErr == nil {
		logErr = err
	}
	var planned []verdict.Suite
	for _, s := range suites {
		planned = append(planned, s.Suite)
	}
	verdict.Judge(c.result, planned, events, c.allow)
	if runErr != nil {
		return runErr
	}
	if logErr != nil {
		return report.OutError("writing down the run's events", c.dir, logErr)
	}
	return c.commands()
}

// console names the file for guest n's console; the first has no number.
func (c *cell) console(kind string, n int) string {
	if n == 1 {
		return filepath.Join(c.dir, kind+".log")
	}
	return filepath.Join(c.dir, fmt.Sprintf("%s-%d.log", kind, n))
}

// commands keeps the exact command lines.
func (c *cell) commands() error {
	text := "# vng\n" + shellQuote(c.result.VNG) + "\n"
	if len(c.result.QEMU) > 0 {
		text += "# qemu, as vng composed it\n" + shellQuote(c.result.QEMU) + "\n"
	}
	if err := os.WriteFile(filepath.Join(c.dir, "commands.txt"), []byte(text), 0o644); err != nil {
		return report.OutError("keeping the command lines", c.dir, err)
	}
	return nil
}

// shellQuote makes words that a shell takes for the same words.
func shellQuote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if w != "" && !strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%", r)
		}) {
			quoted[i] = w
			continue
		}
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// makeRunDir makes the folder of this run. A folder that cannot be written to
// is the user's choice.
func makeRunDir(out string, now time.Time) (string, error) {
	out, err := filepath.Abs(out)
	if err == nil {
		err = os.MkdirAll(out, 0o755)
	}
	for n := 0; err == nil && n < 1000; n++ {
		name := now.Format("20060102-150405")
		if n > 0 {
			name += fmt.Sprintf("-%d", n)
		}
		dir := filepath.Join(out, name)
		mkErr := os.Mkdir(dir, 0o755)
		if mkErr == nil {
			return dir, nil
		}
		if !errors.Is(mkErr, os.ErrExist) {
			err = mkErr
		}
	}
	return "", &fault.Error{
		Blame: fault.Configuration, Doing: "making the folder for the results", Subject: out, Err: err,
		Next: "choose a writable folder with --out",
	}
}

// pointLatest makes OUT/latest a link to the run's folder, in one step.
func pointLatest(dir string) error {
	link := filepath.Join(filepath.Dir(dir), "latest")
	temporary := fmt.Sprintf("%s.%d", link, os.Getpid())
	err := os.Symlink(filepath.Base(dir), temporary)
	if err == nil {
		if err = os.Rename(temporary, link); err != nil {
			os.Remove(temporary)
		}
	}
	if err != nil {
		return report.OutError("pointing at the latest results", link, err)
	}
	return nil
}

// agentBinary finds the guest agent beside this program, or in the checkout.
func agentBinary(p project) (string, error) {
	places := []string{p.path("bin", "patchbay-agent")}
	if exe, err := os.Executable(); err == nil {
		places = append([]string{filepath.Join(filepath.Dir(exe), "patchbay-agent")}, places...)
	}
	for _, path := range places {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", &fault.Error{
		Blame: fault.Harness, Doing: "looking for the guest agent", Subject: places[0], Err: os.ErrNotExist, Next: "make build",
	}
}
