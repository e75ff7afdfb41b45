// SPDX-License-Identifier: MIT

// Package wire is what host and guest say to each other over the virtio-serial
// port: length-prefixed JSON frames, numbered, bounded in size, beginning with
// a hello of each side and, when all went well, ending with the guest's done.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Version is the version of the protocol. Both sides state theirs in their
// hello; different versions do not talk.
const Version = 1

// MaxFrame is the largest encoded frame in bytes, without its length prefix.
// Output travels in chunks of MaxChunk so that base64 and envelope fit.
const MaxFrame = 256 << 10

// MaxChunk is the largest piece of output, in bytes, that one frame carries.
const MaxChunk = 64 << 10

// PortName is the virtio-serial port that the frames travel over, as
// /sys/class/virtio-ports/*/name shows it in the guest.
const PortName = "patchbay.agent"

// ToGuest is a frame from the host. Exactly one field besides Seq is set.
type ToGuest struct {
	Seq uint64 `json:"seq"`
	// Hello opens the conversation; the guest has said its own before.
	Hello *HostHello `json:"hello,omitempty"`
	// Run starts a program. One at a time: the next may follow its Exited.
	Run *Run `json:"run,omitempty"`
	// Kill ends the running program, if it is still the one named.
	Kill *Kill `json:"kill,omitempty"`
	// Finish asks for the rest of the kernel log and for Done.
	Finish *Finish `json:"finish,omitempty"`
}

// FromGuest is a frame from the agent. Exactly one field besides Seq is set.
type FromGuest struct {
	Seq uint64 `json:"seq"`
	// Hello is the first frame after boot.
	Hello *GuestHello `json:"hello,omitempty"`
	// Started says that a program runs.
	Started *Started `json:"started,omitempty"`
	// Output carries what a program wrote.
	Output *Output `json:"output,omitempty"`
	// Kmsg carries one record of /dev/kmsg.
	Kmsg *Kmsg `json:"kmsg,omitempty"`
	// Exited says how a program ended; all of its output came before.
	Exited *Exited `json:"exited,omitempty"`
	// Trouble is something the agent could not do. It ends no run by itself.
	Trouble *Trouble `json:"trouble,omitempty"`
	// Done is the last frame of a complete stream.
	Done *Done `json:"done,omitempty"`
}

// HostHello introduces the host.
type HostHello struct {
	Version int `json:"version"`
}

// GuestHello introduces the guest.
type GuestHello struct {
	Version int `json:"version"`
	// Release is the kernel's release, as uname -r prints it.
	Release string `json:"release"`
	// CPUs counts the CPUs online; Possible those that may ever be.
	CPUs     int `json:"cpus"`
	Possible int `json:"possible"`
	// Uptime is the time from the kernel's start to this frame.
	Uptime time.Duration `json:"uptime_ns"`
}

// Run describes a program to run.
type Run struct {
	// ID numbers the runs of one guest, from 1.
	ID int `json:"id"`
	// Suite names what is run, for the markers in the kernel log.
	Suite string   `json:"suite"`
	Path  string   `json:"path"`
	Args  []string `json:"args,omitempty"`
	Env   []string `json:"env,omitempty"`
	// Mark asks the agent to write a marker into the kernel log at each
	// test's start and end. Suites that write their own, which are exact
	// because the test waits for them, do not ask.
	Mark bool `json:"mark,omitempty"`
}

// Kill names the run to end.
type Kill struct {
	ID int `json:"id"`
}

// Finish asks for the end of the stream.
type Finish struct{}

// Started says that run ID is now process PID of the guest.
type Started struct {
	ID  int `json:"id"`
	PID int `json:"pid"`
}

// Output is a piece of what run ID wrote to standard output (1) or error (2).
type Output struct {
	ID     int    `json:"id"`
	Stream int    `json:"stream"`
	Data   []byte `json:"data"`
}

// Kmsg is one record as read(2) of /dev/kmsg returned it.
type Kmsg struct {
	Record []byte `json:"record"`
}

// Exited says how run ID ended.
type Exited struct {
	ID int `json:"id"`
	// Code is the exit status, or -1 after a signal.
	Code int `json:"code"`
	// Signal is the number of the signal that ended it, or 0.
	Signal int `json:"signal,omitempty"`
	// Killed is set when the host asked for the end.
	Killed bool `json:"killed,omitempty"`
	// Error is why it could not be started; then Code is -1.
	Error string `json:"error,omitempty"`
	// Elapsed is the time from start to end, on the guest's clock.
	Elapsed time.Duration `json:"elapsed_ns"`
	// OutputBytes counts what was sent in Output frames of this run.
	OutputBytes uint64 `json:"output_bytes"`
}

// Trouble reports a difficulty of the agent.
type Trouble struct {
	Text string `json:"text"`
}

// Done closes the stream and counts what it held. A stream without it, or one
// whose counts differ from what arrived, is incomplete.
type Done struct {
	// Runs counts Exited frames, Kmsg the records, OutputBytes all output.
	Runs        int    `json:"runs"`
	Kmsg        uint64 `json:"kmsg"`
	OutputBytes uint64 `json:"output_bytes"`
}

// Frame is either direction's frame type.
type Frame interface{ ToGuest | FromGuest }

// ErrSequence is returned when a frame does not carry the number that follows
// the last one's: something was lost, replayed or made up.
var ErrSequence = errors.New("frame out of sequence")

// ErrFrame is returned for a frame that breaks the format: empty, too long, not
// JSON, or not holding exactly one message.
var ErrFrame = errors.New("malformed frame")

// Decoder reads frames of one direction. Its input is not trusted.
type Decoder[F Frame] struct {
	r    *bufio.Reader
	next uint64
	buf  []byte
	err  error
}

// NewDecoder returns a decoder that reads from r.
func NewDecoder[F Frame](r io.Reader) *Decoder[F] {
	return &Decoder[F]{r: bufio.NewReaderSize(r, 64<<10), next: 1}
}

// Decode returns the next frame. It returns io.EOF where the stream ends
// between frames, io.ErrUnexpectedEOF where it ends inside one, an error that
// wraps ErrSequence or ErrFrame where the sender misbehaved, and the reader's
// own error otherwise. After an error the decoder stays where it is: every
// later call returns the same error.
func (d *Decoder[F]) Decode() (*F, error) {
	if d.err != nil {
		return nil, d.err
	}
	f, err := d.decode()
	if err != nil {
		d.err = err
		return nil, err
	}
	return f, nil
}

func (d *Decoder[F]) decode() (*F, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(d.r, prefix[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(prefix[:]))
	if size <= 0 || size > MaxFrame {
		return nil, fmt.Errorf("%w: length %d is not between 1 and %d", ErrFrame, uint32(size), MaxFrame)
	}
	if cap(d.buf) < size {
		d.buf = make([]byte, size)
	}
	data := d.buf[:size]
	if _, err := io.ReadFull(d.r, data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	var f F
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	seq, messages := inspect(&f)
	if messages != 1 {
		return nil, fmt.Errorf("%w: %d messages where 1 belongs", ErrFrame, messages)
	}
	if seq != d.next {
		return nil, fmt.Errorf("%w: number %d where %d belongs", ErrSequence, seq, d.next)
	}
	d.next++
	return &f, nil
}

// Encoder writes frames of one direction and numbers them. It may be used by
// several goroutines.
type Encoder[F Frame] struct {
	mu   sync.Mutex
	w    io.Writer
	last uint64
	err  error
}

// NewEncoder returns an encoder that writes to w, one Write per frame.
func NewEncoder[F Frame](w io.Writer) *Encoder[F] { return &Encoder[F]{w: w} }

// Encode writes the frame under the next number. After an error the stream is
// unusable and every later call returns the same error.
func (e *Encoder[F]) Encode(f F) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	number(&f, e.last+1)
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encoding a frame: %w", err)
	}
	if len(data) > MaxFrame {
		return fmt.Errorf("%w: length %d is over %d", ErrFrame, len(data), MaxFrame)
	}
	packet := make([]byte, 4+len(data))
	binary.BigEndian.PutUint32(packet, uint32(len(data)))
	copy(packet[4:], data)
	if _, err := e.w.Write(packet); err != nil {
		e.err = err
		return err
	}
	e.last++
	return nil
}

func number[F Frame](f *F, seq uint64) {
	switch f := any(f).(type) {
	case *ToGuest:
		f.Seq = seq
	case *FromGuest:
		f.Seq = seq
	}
}

func inspect[F Frame](f *F) (seq uint64, messages int) {
	count := func(set ...bool) {
		for _, s := range set {
			if s {
				messages++
			}
		}
	}
	switch f := any(f).(type) {
	case *ToGuest:
		seq = f.Seq
		count(f.Hello != nil, f.Run != nil, f.Kill != nil, f.Finish != nil)
	case *FromGuest:
		seq = f.Seq
		count(f.Hello != nil, f.Started != nil, f.Output != nil, f.Kmsg != nil,
			f.Exited != nil, f.Trouble != nil, f.Done != nil)
	}
	return seq, messages
}
