// SPDX-License-Identifier: GPL-2.0-only

package subtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// objectsDeadline is how long the kernel may take, unscaled, to free BPF
// objects: it does so after RCU grace periods, from a work queue.
const objectsDeadline = 10 * time.Second

// descriptors maps the number of each open file descriptor to what it is.
type descriptors map[int]string

// openDescriptors lists the descriptors of this process.
func openDescriptors() (descriptors, error) {
	const dir = "/proc/self/fd"
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	open := descriptors{}
	for _, name := range names {
		number, err := strconv.Atoi(name)
		if err != nil {
			return nil, err
		}
		if number == int(f.Fd()) {
			continue
		}
		target, err := os.Readlink(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		open[number] = target
	}
	return open, nil
}

// without describes those descriptors that are not in before, sorted.
func (d descriptors) without(before descriptors) []string {
	var left []string
	for number, target := range d {
		if before[number] != target {
			left = append(left, fmt.Sprintf("%d -> %s", number, target))
		}
	}
	slices.Sort(left)
	return left
}

// startPoller makes the runtime set up its network poller.
func startPoller() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	return errors.Join(r.Close(), w.Close())
}

// bpfObjects names every BPF map and program in the kernel. IDs are handed out
// in a cycle, so a new object does not soon take the name of a freed one.
func bpfObjects() (map[string]bool, error) {
	objects := map[string]bool{}
	maps := func(id uint32) (uint32, error) {
		next, err := ebpf.MapGetNextID(ebpf.MapID(id))
		return uint32(next), err
	}
	programs := func(id uint32) (uint32, error) {
		next, err := ebpf.ProgramGetNextID(ebpf.ProgramID(id))
		return uint32(next), err
	}
	return objects, errors.Join(walk(objects, "map", maps), walk(objects, "program", programs))
}

func walk(objects map[string]bool, kind string, next func(uint32) (uint32, error)) error {
	for id := uint32(0); ; {
		following, err := next(id)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("next BPF %s: %w", kind, err)
		}
		id = following
		objects[fmt.Sprintf("%s id %d", kind, id)] = true
	}
}

// awaitObjects waits until now names nothing that is not in before. It collects
// garbage meanwhile: package ebpf unmaps a map's memory only then, and until
// then the kernel keeps the map.
func awaitObjects(before map[string]bool, now func() (map[string]bool, error), limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		runtime.GC()
		objects, err := now()
		if err != nil {
			return fmt.Errorf("list BPF objects: %w", err)
		}
		var left []string
		for object := range objects {
			if !before[object] {
				left = append(left, object)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			slices.Sort(left)
			return fmt.Errorf("left behind %d BPF objects after %v: %s", len(left), limit, strings.Join(left, ", "))
		}
	}
}
