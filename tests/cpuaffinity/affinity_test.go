// SPDX-License-Identifier: GPL-2.0-only

package cpuaffinity

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"patchbay/tests/internal/attach"
	"patchbay/tests/internal/sockets"
)

// flags checks what updates are refused, with which error, and that a refused
// one leaves the map as it was.
func flags(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s := prepare(t, k)
		possible := cpus(t, "possible")
		beyond := possible[len(possible)-1] + 1
		const noExistAndExist = ebpf.UpdateNoExist | ebpf.UpdateExist
		for _, c := range []struct {
			name  string
			flags ebpf.MapUpdateFlags
			want  error
		}{
			{"the number behind the last CPU", onCPU(beyond), unix.ERANGE},
			{"-1", onCPU(^uint32(0)), unix.ERANGE},
			{"-2", onCPU(^uint32(1)), unix.ERANGE},
			{"the sign bit", onCPU(1 << 31), unix.ERANGE},
			{"a number that 16 bits would make 0", onCPU(1 << 16), unix.ERANGE},
			{"a number that 8 bits would make 0", onCPU(1 << 8), unix.ERANGE},
			{"a CPU without BPF_F_CPU", ebpf.MapUpdateFlags(1) << 32, unix.EINVAL},
			{"BPF_NOEXIST and BPF_EXIST", onCPU(0) | noExistAndExist, unix.EINVAL},
			{"BPF_F_LOCK", onCPU(0) | ebpf.UpdateLock, unix.EINVAL},
			{"an unknown flag", onCPU(0) | 16, unix.EINVAL},
			{"BPF_EXIST on an empty element", onCPU(0) | ebpf.UpdateExist, unix.ENOENT},
		} {
			err := s.targets().Update(uint32(0), s.target.Value(), c.flags)
			if !errors.Is(err, c.want) {
				t.Errorf("%s (flags %#x): got %v, want %v", c.name, uint64(c.flags), err, c.want)
			}
			var cookie uint64
			if err := s.targets().Lookup(uint32(0), &cookie); !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Fatalf("%s: the refused update left something: %v", c.name, err)
			}
		}
		// CPU 0 is a CPU like all others, and goes with each of the rest.
		for _, flags := range []ebpf.MapUpdateFlags{ebpf.UpdateNoExist, ebpf.UpdateExist, ebpf.UpdateAny} {
			s.put(t, onCPU(0)|flags)
		}
		s.place(t, 0)
	}
}

// otherMapTypes checks that maps that have nothing to do with it go on refusing
// the flag.
func otherMapTypes(t *testing.T) {
	prepare(t, sockmap)
	for _, typ := range []ebpf.MapType{ebpf.Array, ebpf.Hash, ebpf.LRUHash} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: typ, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, flags := range []ebpf.MapUpdateFlags{onCPU(0), onCPU(1), onCPU(^uint32(0))} {
			if err := m.Update(uint32(0), uint64(1), flags); !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s, flags %#x: got %v, want EINVAL", typ, uint64(flags), err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// placement checks every CPU in turn.
func placement(k kind) func(*testing.T) {
	return func(t *testing.T) {
		for _, cpu := range cpus(t, "online") {
			s := prepare(t, k)
			s.put(t, onCPU(cpu))
			s.place(t, cpu)
		}
	}
}

// noCPU checks that without a CPU the work stays with the CPU that handles the
// packets, which over loopback is the sender's, and that the data arrives.
func noCPU(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s := prepare(t, k)
		s.put(t, ebpf.UpdateAny)
		s.send(t, 0)
		if len(s.runs(t)) == 0 {
			t.Fatal("the data arrived, yet sk_psock_backlog was not seen")
		}
	}
}

// backPressure checks that also what has to be tried again is worked on by the
// chosen CPU, and that nothing is lost or changed on the way.
func backPressure(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s, cpu, poured := pressed(t, k)
		s.drain(t, poured)
		s.wantOnly(t, cpu)
	}
}

// pressed has the kernel try in vain to get rid of a stream, on a CPU that can
// go offline.
func pressed(t *testing.T, k kind) (s *setup, cpu uint32, poured <-chan error) {
	t.Helper()
	s, cpu = prepare(t, k), removable(t)
	s.widen(t, narrow)
	s.put(t, onCPU(cpu))
	poured = s.pour()
	s.awaitRetries(t)
	return s, cpu, poured
}

// awaitRetries waits until the kernel has come back to the target a few times
// while nobody read: its way out is full.
func (s *setup) awaitRetries(t *testing.T) {
	t.Helper()
	const enough = 10
	sum := func() (n uint64) {
		for _, count := range s.runs(t) {
			n += count
		}
		return n
	}
	if !sockets.Eventually(func() bool { return sum() >= enough }) {
		t.Fatalf("the kernel came back %d times in %v, want %d: nothing retries", sum(), sockets.Deadline(), enough)
	}
}

// failedUpdate checks that an update that fails leaves the CPU alone.
func failedUpdate(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s := prepare(t, k)
		s.put(t, onCPU(1))
		err := s.targets().Update(uint32(0), s.target.Value(), onCPU(0)|ebpf.UpdateNoExist)
		if !errors.Is(err, unix.EEXIST) {
			t.Fatalf("BPF_NOEXIST on a taken element: got %v, want EEXIST", err)
		}
		err = s.targets().Update(uint32(1), s.target.Value(), onCPU(0)|ebpf.UpdateExist)
		if !errors.Is(err, unix.ENOENT) {
			t.Fatalf("BPF_EXIST on an empty element: got %v, want ENOENT", err)
		}
		err = s.targets().Update(uint32(0), s.target.Value(), onCPU(^uint32(0)))
		if !errors.Is(err, unix.ERANGE) {
			t.Fatalf("a CPU that cannot be: got %v, want ERANGE", err)
		}
		s.place(t, 1)
	}
}

// lastCounts checks that of two maps the last one that was given a CPU counts,
// and one that was not changes nothing.
func lastCounts(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s := prepare(t, k)
		s.put(t, onCPU(0))
		update := func(flags ebpf.MapUpdateFlags) {
			t.Helper()
			if err := s.Other.Update(uint32(0), s.target.Value(), flags); err != nil {
				t.Fatalf("add %s to another map with flags %#x: %v", s.target, uint64(flags), err)
			}
		}
		update(ebpf.UpdateAny)
		s.place(t, 0)
		update(onCPU(1))
		s.move(t, 1)
		s.put(t, ebpf.UpdateAny)
		s.place(t, 1)
		s.put(t, onCPU(0))
		s.move(t, 0)
	}
}

// byProgram checks that BPF programs cannot choose a CPU, and do not undo what
// user space chose.
func byProgram(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s := prepare(t, k)
		s.put(t, onCPU(1))
		for _, c := range []struct {
			flags ebpf.MapUpdateFlags
			want  int64
		}{
			{onCPU(0), -int64(unix.EINVAL)}, {fCPU, -int64(unix.EINVAL)}, {ebpf.UpdateAny, 0},
		} {
			if err := errors.Join(s.UpdateFlags.Set(uint64(c.flags)), s.UpdateResult.Set(int64(1))); err != nil {
				t.Fatal(err)
			}
			attach.Iterate(t, s.PutOther, s.targets())
			var got int64
			if err := s.UpdateResult.Get(&got); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Fatalf("an update by a program with flags %#x gives %d, want %d", uint64(c.flags), got, c.want)
			}
		}
		s.place(t, 1)
	}
}

// offline checks that an offline CPU costs no data, and is used again once it
// is back.
func offline(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s := prepare(t, k)
		cpu := removable(t)
		s.put(t, onCPU(cpu))
		s.place(t, cpu)
		setOnline(t, cpu, false)
		s.forget(t)
		s.send(t, cpu)
		if runs := s.runs(t); len(runs) == 0 || runs[cpu] != 0 {
			t.Fatalf("with CPU %d offline the backlog ran on %v", cpu, runs)
		}
		setOnline(t, cpu, true)
		s.move(t, cpu)

		// It may as well be offline when it is chosen.
		setOnline(t, cpu, false)
		s.put(t, onCPU(cpu))
		s.send(t, cpu)
		setOnline(t, cpu, true)
		s.move(t, cpu)
	}
}

// offlineUnderPressure takes the CPU away while the kernel keeps trying to get
// rid of data, so that a retry is always pending.
func offlineUnderPressure(k kind) func(*testing.T) {
	return func(t *testing.T) {
		s, cpu, poured := pressed(t, k)
		setOnline(t, cpu, false)
		s.drain(t, poured)
		setOnline(t, cpu, true)
	}
}
