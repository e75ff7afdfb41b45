// SPDX-License-Identifier: MIT

// Package doctor says what a machine has and lacks for testing kernels.
package doctor

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/guest"
	"patchbay/harness/internal/fault"
)

// Status says what became of a need.
type Status string

// The states of a need.
const (
	Found   Status = "found"
	Missing Status = "missing"
	TooOld  Status = "too old"
	// TooLittle is for disk and memory.
	TooLittle Status = "too little"
	// Unusable is for what is there and does not work.
	Unusable Status = "unusable"
)

// Finding is one need and how it stands.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Required needs keep the main job from running; the others cost
	// something, which For and Detail say.
	Required bool   `json:"required"`
	For      string `json:"for"`
	Version  string `json:"version,omitempty"`
	Minimum  string `json:"minimum,omitempty"`
	Path     string `json:"path,omitempty"`
	Detail   string `json:"detail,omitempty"`
	// Mend is the command, or the advice, that puts it right.
	Mend string `json:"mend,omitempty"`
}

// Report is everything about a machine.
type Report struct {
	Findings []Finding `json:"findings"`
	// Ready says that the main job can run.
	Ready bool `json:"ready"`
}

// OK reports whether the main job can run.
func (r Report) OK() bool { return r.Ready }

// Options say where to look.
type Options struct {
	// CacheDir is the folder that kernels are built in. It may not exist yet.
	CacheDir string
}

//go:embed needs.txt
var table string

// need is a line of needs.txt.
type need struct {
	level, check, minimum, purpose string
	packages                       map[string]string
}

// managers are the package managers of needs.txt, in the order of its columns,
// with the command that installs.
var managers = []struct{ name, install string }{
	{"apt-get", "apt-get install"}, {"dnf", "dnf install"}, {"pacman", "pacman -S"}, {"zypper", "zypper install"},
}

// needs reads needs.txt. It is part of the program, so a mistake in it is one
// of ours.
func needs() []need {
	var all []need
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "|")
		if len(f) != 4+len(managers) {
			panic("needs.txt: malformed line: " + line)
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		n := need{level: f[0], check: f[1], minimum: strings.Trim(f[2], "-"), purpose: f[3], packages: map[string]string{}}
		for i, m := range managers {
			if f[4+i] != "-" {
				n.packages[m.name] = f[4+i]
			}
		}
		all = append(all, n)
	}
	return all
}

// patience bounds how long one tool may take to tell its version.
const patience = 20 * time.Second

// Check looks at this machine. It changes nothing.
func Check(ctx context.Context, o Options) Report {
	all := needs()
	findings := make([]Finding, len(all), len(all)+5)
	var wait sync.WaitGroup
	for i, n := range all {
		wait.Go(func() { findings[i] = n.look(ctx) })
	}
	wait.Wait()
	findings = append(findings, goTool(ctx), kvm(), disk(o.CacheDir), memory(), temporary())
	return Report{Findings: findings, Ready: ready(findings)}
}

func ready(findings []Finding) bool {
	for _, f := range findings {
		if f.Required && f.Status != Found {
			return false
		}
	}
	return true
}

// Require returns an error unless each of the named needs of the table, such as
// "command:vng", is met.
func Require(ctx context.Context, checks ...string) error {
	for _, n := range needs() {
		for _, check := range checks {
			if n.check != check {
				continue
			}
			if f := n.look(ctx); f.Status != Found {
				subject := f.Name
				if f.Version != "" {
					subject += " " + f.Version
				}
				err := fmt.Errorf("it is %s", f.Status)
				if f.Status == TooOld {
					err = fmt.Errorf("it is too old: %s or newer is needed", f.Minimum)
				}
				return &fault.Error{
					Blame: fault.Harness, Doing: "looking for what guests need", Subject: subject, Said: f.Detail, Err: err,
					Next: f.Mend + "; bin/patchbay doctor lists all that is missing",
				}
			}
		}
	}
	return nil
}

func (n need) look(ctx context.Context) Finding {
	kind, what, _ := strings.Cut(n.check, ":")
	f := Finding{Name: what, Required: n.level == "must", For: n.purpose, Minimum: n.minimum, Status: Found}
	if n.level == "lint" {
		f.For += " (make lint)"
	}
	if kind == "file" {
		f.Path = what
		if _, err := os.Stat(what); err != nil {
			f.Status = Missing
		}
	} else {
		f.command(ctx, what)
	}
	if f.Status != Found {
		f.Mend = n.mend()
	}
	return f
}

// mend names the script, and the package for who would rather do it by hand.
func (n need) mend() string {
	for _, m := range managers {
		if _, err := exec.LookPath(m.name); err == nil && n.packages[m.name] != "" {
			return "bin/setup, or " + m.install + " " + n.packages[m.name]
		}
	}
	return "bin/setup"
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)*`)

// command looks for a program and asks it for its version if that matters.
func (f *Finding) command(ctx context.Context, name string) {
	path, err := exec.LookPath(name)
	if err != nil {
		f.Status = Missing
		return
	}
	f.Path = path
	if f.Minimum == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	line := ""
	for l := range strings.Lines(string(out)) {
		if versionNumber.MatchString(l) {
			line = strings.TrimSpace(l)
			break
		}
	}
	// The first number with a dot: perl has its 5 before it on the line, and
	// QEMU the distribution's version behind.
	for _, number := range versionNumber.FindAllString(line, -1) {
		if f.Version == "" || !strings.Contains(f.Version, ".") {
			f.Version = number
		}
	}
	switch {
	case err != nil:
		f.Status, f.Detail = Unusable, fmt.Sprintf("%s --version: %v: %s", name, err, strings.TrimSpace(string(out)))
	case f.Version == "":
		f.Status, f.Detail = Unusable, name+" --version tells no version"
	case older(f.Version, f.Minimum):
		f.Status = TooOld
	}
}

// older compares versions number by number.
func older(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return m < n
		}
	}
	return false
}

func goTool(ctx context.Context) Finding {
	f := Finding{Name: "go", Required: true, For: "building the tests", Status: Found, Minimum: "1.21"}
	path, err := exec.LookPath("go")
	if err != nil {
		f.Status, f.Mend = Missing, "install Go, at least 1.21: it fetches the version that go.mod asks for"
		return f
	}
	f.Path = path
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "env", "GOVERSION").CombinedOutput()
	f.Version = versionNumber.FindString(string(out))
	switch {
	case err != nil || f.Version == "":
		f.Status, f.Detail = Unusable, strings.TrimSpace(string(out))
		f.Mend = "mend the Go installation"
	case older(f.Version, f.Minimum):
		f.Status, f.Mend = TooOld, "install a newer Go: from 1.21 on it fetches the version that go.mod asks for"
	}
	return f
}

func kvm() Finding {
	f := Finding{Name: "KVM", For: "running guests at full speed", Path: "/dev/kvm", Status: Found}
	accel, why := guest.Detect()
	if accel == guest.KVM {
		return f
	}
	f.Status, f.Detail = Unusable, why+"; guests are emulated instead (TCG): they are slower, and deadlines are stretched"
	_, err := os.Stat(f.Path)
	info, _ := os.ReadFile("/proc/cpuinfo")
	flags := regexp.MustCompile(`(?m)^flags\s*:.*\b(vmx|svm)\b`)
	switch {
	case err == nil:
		f.Mend = "sudo usermod -aG kvm $USER, then log in again"
	case flags.Match(info):
		f.Status, f.Mend = Missing, "sudo modprobe kvm_intel or kvm_amd; in a container, hand /dev/kvm in"
	default:
		f.Status, f.Mend = Missing, "switch virtualisation on in the firmware, or nested virtualisation on the host of this VM"
	}
	return f
}

// What one run takes: a store of the sources (0.4 GiB), a build folder
// (2 GiB with its checkout) and artifacts, with room for a second version;
// memory for a guest of 1 GiB and QEMU's own.
const (
	needDisk   = 6 << 30
	needMemory = 1536 << 20
	needTemp   = 64 << 20
)

// sized fills in a Finding about an amount of bytes.
func (f Finding) sized(have, want uint64) Finding {
	f.Version = fmt.Sprintf("%.1f GiB", float64(have)/(1<<30))
	f.Minimum = fmt.Sprintf("%.1f GiB", float64(want)/(1<<30))
	f.Status = Found
	if have < want {
		f.Status = TooLittle
	} else {
		f.Mend = ""
	}
	return f
}

// free returns the space that this user can fill below the nearest existing
// parent of dir.
func free(dir string) (uint64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			return 0, err
		}
		dir = filepath.Dir(dir)
	}
}

func disk(dir string) Finding {
	f := Finding{Name: "free disk", Required: true, For: "kernel sources and builds", Path: dir, Mend: "make room, or set PATCHBAY_CACHE to a folder elsewhere"}
	have, err := free(dir)
	if err != nil {
		f.Status, f.Detail = Unusable, err.Error()
		return f
	}
	return f.sized(have, needDisk)
}

func temporary() Finding {
	f := Finding{Name: "temporary files", Required: true, For: "initramfs and sockets of guests", Path: os.TempDir(), Mend: "set TMPDIR to a writable folder"}
	probe, err := os.CreateTemp("", "patchbay-doctor-")
	if err != nil {
		f.Status, f.Detail = Unusable, err.Error()
		return f
	}
	probe.Close()
	os.Remove(probe.Name())
	have, err := free(os.TempDir())
	if err != nil {
		f.Status, f.Detail = Unusable, err.Error()
		return f
	}
	return f.sized(have, needTemp)
}

func memory() Finding {
	f := Finding{Name: "free memory", Required: true, For: "a guest of 1 GiB", Mend: "close something, or use a machine with more"}
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		f.Status, f.Detail = Unusable, err.Error()
		return f
	}
	for line := range strings.Lines(string(data)) {
		if kib, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			if err == nil {
				return f.sized(n<<10, needMemory)
			}
		}
	}
	f.Status, f.Detail = Unusable, "/proc/meminfo does not say"
	return f
}

// WriteText prints the report for people.
func (r Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		sign := "ok"
		switch {
		case f.Status == Found:
		case f.Required:
			sign = "NO"
		default:
			sign = "--"
		}
		state := string(f.Status)
		if f.Version != "" {
			state += " " + f.Version
		}
		if f.Status != Found && f.Minimum != "" {
			state += ", needs " + f.Minimum
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", sign, f.Name, state, f.For)
		for _, more := range []struct{ what, text string }{{"why", f.Detail}, {"mend", f.Mend}} {
			if f.Status != Found && more.text != "" {
				fmt.Fprintf(w, "\t\t%s: %s\n", more.what, more.text)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	last := "The main job can run: make vmtest"
	if !r.Ready {
		last = "The main job cannot run; bin/setup installs what is missing"
	}
	_, err := fmt.Fprintf(out, "\n%s (%s/%s)\n", last, runtime.GOOS, runtime.GOARCH)
	return err
}
