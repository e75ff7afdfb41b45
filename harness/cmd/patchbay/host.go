// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/harness/guest"
	"patchbay/harness/verdict"
)

// loadAverage is the host's over the last minute, or 0.
func loadAverage() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// hostCPUs is how many CPUs this process may use.
func hostCPUs() int { return runtime.NumCPU() }

// describeHost says what machine this is.
func describeHost() verdict.Host {
	h := verdict.Host{CPUs: hostCPUs()}
	h.Name, _ = os.Hostname()
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	if f, err := os.Open("/etc/os-release"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, ok := strings.CutPrefix(s.Text(), "PRETTY_NAME="); ok {
				h.OS = strings.Trim(name, `"`)
			}
		}
	}
	accel, why := guest.Detect()
	h.KVM, h.KVMError = accel == guest.KVM, why
	return h
}

// versions asks the tools for theirs while the run goes on.
type versions struct {
	mu    sync.Mutex
	group sync.WaitGroup
	found map[string]string
}

func newVersions(ctx context.Context) *versions {
	v := &versions{found: map[string]string{"go": runtime.Version(), "patchbay": ownVersion()}}
	for name, command := range map[string][]string{
		"vng":  {"vng", "--version"},
		"qemu": {"qemu-system-x86_64", "--version"},
		"git":  {"git", "--version"},
	} {
		v.group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
			line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
			if err != nil {
				line = "unknown: " + err.Error()
			}
			v.mu.Lock()
			v.found[name] = line
			v.mu.Unlock()
		})
	}
	return v
}

// wait returns all versions.
func (v *versions) wait(c *verdict.Cell) map[string]string {
	v.group.Wait()
	if c.Kernel != "" {
		v.found["kernel"] = c.Kernel
	}
	return v.found
}

// ownVersion is the commit that this binary was built from.
func ownVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "unknown", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+changes"
			}
		}
	}
	return revision + modified
}
