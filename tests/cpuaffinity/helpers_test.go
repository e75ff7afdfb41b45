// SPDX-License-Identifier: GPL-2.0-only

package cpuaffinity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"patchbay/tests/bpf"
	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/sockets"
	"patchbay/tests/internal/subtest"
)

// fCPU is BPF_F_CPU (include/uapi/linux/bpf.h): the update's flags have a CPU
// in their upper 32 bits.
const fCPU ebpf.MapUpdateFlags = 8

// onCPU makes the flags of an update that chooses a CPU.
func onCPU(cpu uint32) ebpf.MapUpdateFlags { return fCPU | ebpf.MapUpdateFlags(cpu)<<32 }

// kind is a type of map under test.
type kind bool

const (
	sockmap  kind = false
	sockhash kind = true
)

// setup is a way for data from in to out, through a map: what is sent to in is
// redirected to the target, which sends it on to out.
type setup struct {
	bpf.AffinityObjects
	kind    kind
	in, out *sockets.Socket
	target  *sockets.Socket
}

// prepare loads the programs and connects the sockets, and skips t on a kernel
// without the feature. The target is in no map yet.
func prepare(t *testing.T, k kind) *setup {
	t.Helper()
	s := &setup{kind: k}
	subtest.Load(t, bpf.LoadAffinityObjects, &s.AffinityObjects)
	// The value is no socket, which a kernel that does not know the flag
	// refuses with EINVAL; one that does sees first that no machine has
	// that CPU.
	err := s.targets().Update(uint32(0), ^uint64(0), onCPU(^uint32(0)))
	switch {
	case errors.Is(err, unix.EINVAL):
		t.Skip("the kernel lacks sockmap CPU affinity: BPF_F_CPU gives EINVAL")
	case !errors.Is(err, unix.ERANGE):
		t.Fatalf("probe for BPF_F_CPU: got %v, want ERANGE", err)
	}
	verdict := s.ToMap
	if k == sockhash {
		verdict = s.ToHash
	}
	attach.Map(t, s.Source, verdict, ebpf.AttachSkSKBStreamVerdict)
	attach.Tracing(t, s.Backlog)
	var source *sockets.Socket
	source, s.in = sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	s.target, s.out = sockets.Pair(t, unix.AF_INET, unix.SOCK_STREAM)
	if err := s.Source.Update(uint32(0), source.Value(), ebpf.UpdateAny); err != nil {
		t.Fatalf("add %s to the source map: %v", source, err)
	}
	if err := s.Cookie.Set(s.target.Cookie(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

// targets is the map under test.
func (s *setup) targets() *ebpf.Map {
	if s.kind == sockhash {
		return s.TargetHash
	}
	return s.TargetMap
}

// put puts the target into the map under test, under the key that data is
// redirected to.
func (s *setup) put(t *testing.T, flags ebpf.MapUpdateFlags) {
	t.Helper()
	if err := s.targets().Update(uint32(0), s.target.Value(), flags); err != nil {
		t.Fatalf("add %s with flags %#x: %v", s.target, uint64(flags), err)
	}
}

// runs returns how often each CPU worked for the target.
func (s *setup) runs(t *testing.T) map[uint32]uint64 {
	t.Helper()
	var counts [64]uint64
	if err := s.Runs.Get(&counts); err != nil {
		t.Fatalf("read the counters: %v", err)
	}
	found := map[uint32]uint64{}
	for cpu, n := range counts {
		if n > 0 {
			found[uint32(cpu)] = n
		}
	}
	return found
}

// forget sets the counters to zero.
func (s *setup) forget(t *testing.T) {
	t.Helper()
	if err := s.Runs.Set([64]uint64{}); err != nil {
		t.Fatalf("clear the counters: %v", err)
	}
}

// rounds is how often send sends: a single piece of data could be on the right
// CPU by chance.
const rounds = 20

// send sends some data, from another CPU than avoid, and checks that it comes
// out whole. The sender's CPU is where the work ran if nobody chose one.
func (s *setup) send(t *testing.T, avoid uint32) {
	t.Helper()
	s.sendRounds(t, avoid, rounds)
}

func (s *setup) sendRounds(t *testing.T, avoid uint32, rounds int) {
	t.Helper()
	defer pin(t, another(t, avoid))()
	for round := range rounds {
		data := pattern(round, 300+round)
		s.in.Send(t, data)
		got := make([]byte, len(data))
		for n := 0; n < len(got); {
			m, err := s.out.Read(got[n:])
			if err != nil {
				t.Fatalf("round %d: %v after %d of %d bytes; the work ran on %v", round, err, n, len(got), s.runs(t))
			}
			n += m
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("round %d: received %x, want %x", round, got, data)
		}
	}
}

// wantOnly checks that all work for the target was done by this CPU.
func (s *setup) wantOnly(t *testing.T, cpu uint32) {
	t.Helper()
	runs := s.runs(t)
	if len(runs) != 1 || runs[cpu] == 0 {
		t.Fatalf("the backlog ran on CPUs (and how often) %v, want only CPU %d", runs, cpu)
	}
}

// move checks that the work comes over to this CPU from another one and then
// stays. A work item never runs twice at a time: what is queued while it still
// runs elsewhere is done there (__queue_work in kernel/workqueue.c). Once it has
// run on the new CPU nothing leads back.
func (s *setup) move(t *testing.T, cpu uint32) {
	t.Helper()
	s.forget(t)
	if !sockets.Eventually(func() bool {
		s.sendRounds(t, cpu, 1)
		return s.runs(t)[cpu] > 0
	}) {
		t.Fatalf("the backlog stays on CPUs (and how often) %v, want CPU %d", s.runs(t), cpu)
	}
	s.place(t, cpu)
}

// place sends data and checks that this CPU alone moves it.
func (s *setup) place(t *testing.T, cpu uint32) {
	t.Helper()
	s.forget(t)
	s.send(t, cpu)
	s.wantOnly(t, cpu)
}

// pattern makes bytes that differ from round to round and from place to place.
func pattern(round, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i/251 + round*31)
	}
	return b
}

// pin binds the calling goroutine to a CPU until the returned function is
// called.
func pin(t *testing.T, cpu uint32) (release func()) {
	t.Helper()
	runtime.LockOSThread()
	var before, set unix.CPUSet
	set.Set(int(cpu))
	err := unix.SchedGetaffinity(0, &before)
	if err == nil {
		err = unix.SchedSetaffinity(0, &set)
	}
	if err != nil {
		runtime.UnlockOSThread()
		t.Fatalf("bind the sender to CPU %d: %v", cpu, err)
	}
	return func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Errorf("release the sender: %v", err)
		}
		runtime.UnlockOSThread()
	}
}

// cpus reads one of the kernel's lists of CPUs: online, possible, present.
func cpus(t *testing.T, which string) []uint32 {
	t.Helper()
	data, err := os.ReadFile("/sys/devices/system/cpu/" + which)
	if err != nil {
		t.Fatal(err)
	}
	var all []uint32
	for part := range strings.SplitSeq(strings.TrimSpace(string(data)), ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.ParseUint(low, 10, 32)
		to, err2 := strconv.ParseUint(high, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatalf("CPUs %s: %q: %v", which, data, err)
		}
		for cpu := from; cpu <= to; cpu++ {
			all = append(all, uint32(cpu))
		}
	}
	return all
}

// another returns an online CPU that is not this one.
func another(t *testing.T, cpu uint32) uint32 {
	t.Helper()
	for _, other := range cpus(t, "online") {
		if other != cpu {
			return other
		}
	}
	t.Fatal("one CPU is online: a guest for this suite needs at least two")
	return 0
}

// removable returns a CPU that can go offline.
func removable(t *testing.T) uint32 {
	t.Helper()
	online := cpus(t, "online")
	cpu := online[len(online)-1]
	if cpu == 0 {
		t.Fatal("only CPU 0 is online: a guest for this suite needs at least two")
	}
	t.Cleanup(func() { setOnline(t, cpu, true) })
	return cpu
}

// setOnline takes a CPU offline, or back.
func setOnline(t *testing.T, cpu uint32, online bool) {
	t.Helper()
	state := "0"
	if online {
		state = "1"
	}
	path := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", cpu)
	if err := os.WriteFile(path, []byte(state), 0); err != nil {
		t.Fatalf("switch CPU %d: %v", cpu, err)
	}
}

// stream is more than the sockets' buffers hold, so that the kernel has to
// come back for the rest.
const stream = 1 << 20

// pour sends a stream to in, from another goroutine.
func (s *setup) pour() <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.in.Write(pattern(0, stream))
		done <- err
	}()
	return done
}

// drain reads the stream from out and checks that it is whole.
func (s *setup) drain(t *testing.T, poured <-chan error) {
	t.Helper()
	s.widen(t, wide)
	var got bytes.Buffer
	b := make([]byte, 64<<10)
	for got.Len() < stream {
		n, err := s.out.Read(b)
		if err != nil {
			t.Fatalf("%v after %d of %d bytes; the work ran on %v", err, got.Len(), stream, s.runs(t))
		}
		got.Write(b[:n])
	}
	if err := <-poured; err != nil {
		t.Fatal(err)
	}
	if want := pattern(0, stream); !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("%d bytes came out changed", got.Len())
	}
}

// The sizes of the target's way out: so small that it fills up, and so large
// that all of the stream fits. Loopback's segments have 64 KiB: with a smaller
// window than that TCP would wait for its timers most of the time.
const (
	narrow = 64 << 10
	wide   = 1 << 20
)

// widen sets the size of the target's way out.
func (s *setup) widen(t *testing.T, size int) {
	t.Helper()
	for _, o := range []struct{ fd, option int }{{s.target.FD(), unix.SO_SNDBUF}, {s.out.FD(), unix.SO_RCVBUF}} {
		if err := unix.SetsockoptInt(o.fd, unix.SOL_SOCKET, o.option, size); err != nil {
			t.Fatal(err)
		}
	}
}
