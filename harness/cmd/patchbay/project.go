// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/progress"
	"patchbay/harness/plan"
	"patchbay/harness/series"
	"patchbay/harness/tree"
)

// project is the checkout that the data files come from.
type project struct{ root string }

func (p project) path(elements ...string) string {
	return filepath.Join(append([]string{p.root}, elements...)...)
}

// findProject looks for the checkout: above the working folder first, so that
// one binary serves several checkouts, then above the binary.
func findProject() (project, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "kernel", "bases.yaml")); err == nil {
				return project{dir}, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return project{}, &fault.Error{
		Blame: fault.Configuration, Doing: "looking for the patchbay checkout", Subject: strings.Join(starts, ", "),
		Err: errors.New("no kernel/bases.yaml here or above"), Next: "call patchbay from within its checkout",
	}
}

// cacheDir is where sources and artifacts are kept.
func cacheDir() (string, error) {
	if dir := os.Getenv("PATCHBAY_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", &fault.Error{
			Blame: fault.Configuration, Doing: "looking for the cache folder", Err: err,
			Next: "set PATCHBAY_CACHE to a folder with room for some gigabytes",
		}
	}
	return filepath.Join(dir, "patchbay"), nil
}

// sourceFlags say which kernel is wanted.
type sourceFlags struct {
	base, kdir, rev, tarball, sha256 string
	series                           []string
	config                           string
	jobs                             int
}

func (f *sourceFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.base, "base", defaultBase, "known kernel to start from (see patchbay list bases)")
	flags.StringVar(&f.kdir, "kdir", "", "your own kernel tree instead of a base; it is only read")
	flags.StringVar(&f.rev, "rev", "", "revision in --kdir; without it what is there now, uncommitted changes included")
	flags.StringVar(&f.tarball, "tarball", "", "kernel source tarball instead of a base")
	flags.StringVar(&f.sha256, "sha256", "", "checksum that --tarball must have")
	flags.StringArrayVar(&f.series, "series", nil, "patches to apply: a name of kernel/series, a folder, an mbox, a diff,\n- for standard input, or none; may be repeated, in order\n(default sockmap-cpu-affinity on a base, none on your own sources)")
	flags.StringVar(&f.config, "config", "default", "vmconfig: the guest and its kernel configuration")
	flags.IntVar(&f.jobs, "jobs", 0, "compile jobs (default: one for each CPU)")
	complete := func(list func() []string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return list(), cobra.ShellCompDirectiveDefault
		}
	}
	_ = cmd.RegisterFlagCompletionFunc("base", complete(baseNames))
	_ = cmd.RegisterFlagCompletionFunc("series", complete(seriesNames))
	_ = cmd.RegisterFlagCompletionFunc("config", complete(configNames))
}

// What is tested unless told otherwise.
const (
	defaultBase   = "v6.12"
	defaultSeries = "sockmap-cpu-affinity"
)

// job is a request that has been understood: everything in it exists.
type job struct {
	project project
	cache   string
	source  tree.Source
	// name is the base's name, or how the user called the sources.
	name   string
	own    bool
	series []string
	config *plan.VMConfig
	jobs   int
}

// check turns the flags into a job. All that is wrong with them is reported
// together.
func (f *sourceFlags) check(cmd *cobra.Command) (*job, error) {
	p, err := findProject()
	if err != nil {
		return nil, err
	}
	j := &job{project: p, jobs: f.jobs}
	var faults *multierror.Error
	add := func(err error) {
		if err != nil {
			faults = multierror.Append(faults, err)
		}
	}
	j.cache, err = cacheDir()
	add(err)
	j.config, err = plan.LoadVMConfig(p.path("vmconfigs"), f.config)
	add(err)
	add(f.sources(cmd, j))

	j.series = f.series
	if len(j.series) == 0 && !j.own {
		j.series = []string{defaultSeries}
	}
	if len(j.series) == 1 && j.series[0] == "none" {
		j.series = nil
	}
	for _, s := range j.series {
		if s == "none" {
			add(usage("--series none", errors.New("it goes with no other series"), "leave it out, or leave the others out"))
		}
	}
	return j, faults.ErrorOrNil()
}

func usage(subject string, err error, next string) error {
	return &fault.Error{Blame: fault.Configuration, Doing: "reading the command line", Subject: subject, Err: err, Next: next}
}

func (f *sourceFlags) sources(cmd *cobra.Command, j *job) error {
	chosen := 0
	for _, set := range []bool{cmd.Flags().Changed("base"), f.kdir != "", f.tarball != ""} {
		if set {
			chosen++
		}
	}
	switch {
	case chosen > 1:
		return usage("--base, --kdir, --tarball", errors.New("only one kernel can be meant"), "keep one of them")
	case f.rev != "" && f.kdir == "":
		return usage("--rev", errors.New("it is a revision of --kdir"), "add --kdir")
	case f.sha256 != "" && f.tarball == "":
		return usage("--sha256", errors.New("it is the checksum of --tarball"), "add --tarball")
	case f.kdir != "":
		dir, err := filepath.Abs(f.kdir)
		if err != nil {
			return usage("--kdir", err, "give a folder")
		}
		j.name, j.own, j.source = dir, true, tree.Source{Dir: dir, Rev: f.rev}
	case f.tarball != "":
		file, err := filepath.Abs(f.tarball)
		if err != nil {
			return usage("--tarball", err, "give a file")
		}
		j.name, j.own, j.source = file, true, tree.Source{Tarball: file, SHA256: f.sha256}
	default:
		bases, err := tree.LoadBases(j.project.path("kernel", "bases.yaml"))
		if err != nil {
			return err
		}
		base, err := bases.Find(f.base)
		if err != nil {
			return err
		}
		j.name, j.source = base.Name, tree.Source{Base: base}
	}
	return nil
}

// read reads the job's series. A name of kernel/series is looked up for the
// base; for a user's sources, for the base of their version.
func (j *job) read(ctx context.Context, a *app, version string) ([]series.Series, error) {
	base := j.name
	if j.own {
		parts := strings.SplitN(version, ".", 3)
		if len(parts) >= 2 {
			base = "v" + parts[0] + "." + parts[1]
		}
	}
	var all []series.Series
	var faults *multierror.Error
	for _, spec := range j.series {
		name := spec
		if _, err := os.Stat(spec); err != nil && spec != "-" {
			dir, err := series.Find(j.project.path("kernel", "series"), spec, base)
			if err != nil {
				faults = multierror.Append(faults, err)
				continue
			}
			spec = dir
		}
		s, err := series.Read(ctx, spec, a.stdin)
		if err != nil {
			faults = multierror.Append(faults, err)
			continue
		}
		s.Name = name
		all = append(all, s)
	}
	return all, faults.ErrorOrNil()
}

// source resolves the sources and applies the series.
func (j *job) prepare(ctx context.Context, a *app, news progress.Func) (*tree.Store, tree.Commit, []series.Series, []series.Applied, error) {
	store, err := tree.Open(ctx, j.cache, news)
	if err != nil {
		return nil, tree.Commit{}, nil, nil, err
	}
	base, err := store.Resolve(ctx, j.source)
	if err != nil {
		return nil, tree.Commit{}, nil, nil, err
	}
	all, err := j.read(ctx, a, base.Version)
	if err != nil {
		return nil, tree.Commit{}, nil, nil, err
	}
	commit, applied, err := series.Apply(ctx, store, base, all...)
	if err != nil {
		return nil, tree.Commit{}, nil, nil, err
	}
	return store, commit, all, applied, nil
}

// label names the job's cell.
func (j *job) label() string {
	id := filepath.Base(j.name)
	for _, s := range j.series {
		id += "+" + strings.TrimSuffix(filepath.Base(s), ".mbox")
	}
	return fmt.Sprintf("%s/%s", id, j.config.Name)
}

func baseNames() []string {
	p, err := findProject()
	if err != nil {
		return nil
	}
	bases, err := tree.LoadBases(p.path("kernel", "bases.yaml"))
	if err != nil {
		return nil
	}
	return bases.Names()
}

func seriesNames() []string {
	p, err := findProject()
	if err != nil {
		return nil
	}
	all, _ := series.List(p.path("kernel", "series"))
	names := []string{"none"}
	for name := range all {
		names = append(names, name)
	}
	return names
}

func configNames() []string {
	p, err := findProject()
	if err != nil {
		return nil
	}
	names, _ := plan.VMConfigs(p.path("vmconfigs"))
	return names
}
