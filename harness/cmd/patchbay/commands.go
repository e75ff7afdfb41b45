// SPDX-License-Identifier: MIT

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"patchbay/harness/doctor"
	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/internal/names"
	"patchbay/harness/internal/progress"
	"patchbay/harness/kbuild"
	"patchbay/harness/plan"
	"patchbay/harness/report"
	"patchbay/harness/series"
	"patchbay/harness/tree"
)

func (a *app) buildCommand() *cobra.Command {
	var f sourceFlags
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build a kernel and its libbpf, and say where they are",
		Long: `Resolve the kernel sources, apply the series, and build the kernel and libbpf as
patchbay run would, without booting anything. The paths are printed one on a
line, as NAME=PATH.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			j, err := f.check(cmd)
			if err != nil {
				return err
			}
			live := report.NewLive(a.stderr, liveOptions(a.stderr))
			defer live.Close()
			news := progress.Func(live.Progress)
			store, commit, _, _, err := j.prepare(ctx, a, news)
			if err != nil {
				return err
			}
			builder := &kbuild.Builder{CacheDir: j.cache, Sources: store, News: news, Jobs: j.jobs}
			artifact, err := builder.Kernel(ctx, kbuild.Request{Commit: commit, Fragments: j.config.Fragments})
			if err != nil {
				return err
			}
			live.Close()
			for _, line := range [][2]string{
				{"commit", commit.ID},
				{"release", artifact.Release},
				{"image", artifact.Image},
				{"config", artifact.Config},
				{"libbpf_static", artifact.LibbpfStatic},
				{"libbpf_shared", artifact.LibbpfShared},
				{"libbpf_headers", artifact.LibbpfHeaders},
				{"log", artifact.Log},
			} {
				fmt.Fprintf(a.stdout, "%s=%s\n", line[0], line[1])
			}
			return nil
		},
	}
	f.register(cmd)
	return cmd
}

// lists are what patchbay list can list, in this order.
var lists = []string{"bases", "series", "configs", "tests"}

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "list [" + strings.Join(lists, "|") + "]",
		Short:     "List what can be named: bases, series, vmconfigs, tests",
		Long:      "List the known kernels, the project's series, the vmconfigs, and the tests of each\nsuite, in the form in which --base, --series, --config and --test take them.",
		ValidArgs: lists,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findProject()
			if err != nil {
				return err
			}
			wanted := args
			if len(wanted) == 0 {
				wanted = lists
			}
			var faults *multierror.Error
			for i, what := range wanted {
				if !slices.Contains(lists, what) {
					faults = multierror.Append(faults, names.Unknown("list", what, lists))
					continue
				}
				if len(wanted) > 1 {
					if i > 0 {
						fmt.Fprintln(a.stdout)
					}
					fmt.Fprintln(a.stdout, strings.ToUpper(what))
				}
				if err := a.list(cmd, p, what); err != nil {
					faults = multierror.Append(faults, err)
				}
			}
			return faults.ErrorOrNil()
		},
	}
}

func (a *app) list(cmd *cobra.Command, p project, what string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 3, ' ', 0)
	defer w.Flush()
	switch what {
	case "bases":
		bases, err := tree.LoadBases(p.path("kernel", "bases.yaml"))
		if err != nil {
			return err
		}
		for _, b := range bases {
			var ways []string
			for _, way := range b.Ways {
				ways = append(ways, way.String())
			}
			fmt.Fprintf(w, "%s\t%s\n", b.Name, strings.Join(ways, ", else "))
		}
	case "series":
		all, err := series.List(p.path("kernel", "series"))
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(w, "%s\tfor %s\n", name, strings.Join(all[name], ", "))
		}
	case "configs":
		all, err := plan.VMConfigs(p.path("vmconfigs"))
		if err != nil {
			return err
		}
		var faults *multierror.Error
		for _, name := range all {
			c, err := plan.LoadVMConfig(p.path("vmconfigs"), name)
			if err != nil {
				faults = multierror.Append(faults, err)
				continue
			}
			fmt.Fprintf(w, "%s\t%s\n", name, c.Description)
		}
		return faults.ErrorOrNil()
	case "tests":
		cache, err := cacheDir()
		if err != nil {
			return err
		}
		scratch, remove, err := keeper.TempDir("patchbay-")
		if err != nil {
			return report.OutError("making a folder for the test programs", os.TempDir(), err)
		}
		defer remove()
		suites, err := (&kbuild.Builder{CacheDir: cache}).Suites(cmd.Context(), p.root, scratch, nil)
		if err != nil {
			return err
		}
		for _, s := range suites {
			for _, test := range s.Tests {
				fmt.Fprintf(w, "%s/%s\n", s.Name, test)
			}
		}
	}
	return nil
}

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has and lacks for the main job",
		Long: `Check every need: found, missing or too old, what it is for, and the command that
mends it; whether KVM works, and if not why and what that costs; free disk and
memory. The exit code is 0 only if the main job can run, else 4.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := cacheDir()
			if err != nil {
				return err
			}
			result := doctor.Check(cmd.Context(), doctor.Options{CacheDir: cache})
			if asJSON {
				enc := json.NewEncoder(a.stdout)
				enc.SetIndent("", "  ")
				err = enc.Encode(result)
			} else {
				err = result.WriteText(a.stdout)
			}
			if err != nil {
				return &fault.Error{Blame: fault.Harness, Doing: "writing the report", Err: err, Next: "check where the output goes"}
			}
			if !result.OK() {
				return exitError(fault.ExitHarness)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) reportCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "report [DIR]",
		Short: "Show the results of a finished run again",
		Long:  "Read results.json of a run's folder (default out/latest) and print its report. The\nexit code is that of the run.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := filepath.Join("out", "latest")
			if len(args) == 1 {
				dir = args[0]
			}
			result, err := report.ReadJSON(dir)
			if err != nil {
				return err
			}
			options := textOptions(a.stdout)
			options.Verbose = verbose
			if err := report.WriteText(a.stdout, result, options); err != nil {
				return &fault.Error{Blame: fault.Harness, Doing: "writing the report", Err: err, Next: "check where the output goes"}
			}
			if result.ExitCode != fault.ExitOK {
				return exitError(result.ExitCode)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the output of passing tests too")
	return cmd
}

func (a *app) cleanCommand() *cobra.Command {
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Delete what the cache can make again",
		Long: `Delete the source and build folders of the cache. Finished artifacts and imported
sources stay, so that a known kernel still boots at once; --all deletes those
too. Do not call it while a run is under way.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, _ []string) error {
			cache, err := cacheDir()
			if err != nil {
				return err
			}
			return a.clean(cache, all, dryRun)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete the whole cache")
	cmd.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "only say what would be deleted")
	return cmd
}

func (a *app) clean(cache string, all, dryRun bool) error {
	if _, err := os.Stat(cache); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	slots, err := (&kbuild.Builder{CacheDir: cache}).Slots()
	if err != nil {
		return err
	}
	targets := []string{slots}
	if all {
		targets = append(targets, cache)
	}
	verb := "deleted"
	if dryRun {
		verb = "would delete"
	}
	var faults *multierror.Error
	for _, dir := range targets {
		size, err := diskUsage(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && !dryRun {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			faults = multierror.Append(faults, report.OutError("cleaning the cache", dir, err))
			continue
		}
		fmt.Fprintf(a.stdout, "%s %s (%.1f GiB)\n", verb, dir, float64(size)/(1<<30))
	}
	return faults.ErrorOrNil()
}

// diskUsage adds up the sizes of the files below dir, in bytes.
func diskUsage(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && d.Type().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	return total, err
}

// terminal describes where output goes.
func terminal(w io.Writer) (is bool, width int, color bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return false, 80, false
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return true, width, os.Getenv("NO_COLOR") == ""
	}
	return true, 80, os.Getenv("NO_COLOR") == ""
}

func liveOptions(w io.Writer) report.LiveOptions {
	is, width, color := terminal(w)
	return report.LiveOptions{Terminal: is, Width: width, Color: color}
}

func textOptions(w io.Writer) report.TextOptions {
	_, width, color := terminal(w)
	return report.TextOptions{Width: width, Color: color}
}
