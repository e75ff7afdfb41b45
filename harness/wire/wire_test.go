// SPDX-License-Identifier: MIT

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func packet(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestRoundTrip(t *testing.T) {
	sent := []FromGuest{
		{Hello: &GuestHello{Version: Version, Release: "6.12.0", CPUs: 4, Possible: 4, Uptime: 7}},
		{Started: &Started{ID: 1, PID: 42}},
		{Output: &Output{ID: 1, Stream: 2, Data: []byte("\x00\xff not text \x1b[2J")}},
		{Kmsg: &Kmsg{Record: []byte("6,1,2,-;hi\n")}},
		{Exited: &Exited{ID: 1, Code: -1, Signal: 9, OutputBytes: 12}},
		{Trouble: &Trouble{Text: "mounting /proc"}},
		{Done: &Done{Runs: 1, Kmsg: 1, OutputBytes: 12}},
	}
	var stream bytes.Buffer
	enc := NewEncoder[FromGuest](&stream)
	for i := range sent {
		if err := enc.Encode(sent[i]); err != nil {
			t.Fatal(err)
		}
		sent[i].Seq = uint64(i + 1)
	}
	dec := NewDecoder[FromGuest](&stream)
	var got []FromGuest
	for {
		f, err := dec.Decode()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, *f)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("frames changed on the way (-sent +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := string(packet(`{"seq":1,"done":{"runs":0,"kmsg":0,"output_bytes":0}}`))
	for name, tc := range map[string]struct {
		stream string
		want   error
	}{
		"nothing":              {"", io.EOF},
		"half a prefix":        {"\x00\x00", io.ErrUnexpectedEOF},
		"prefix alone":         {"\x00\x00\x00\x05", io.ErrUnexpectedEOF},
		"half a body":          {good[:len(good)-3], io.ErrUnexpectedEOF},
		"length zero":          {"\x00\x00\x00\x00", ErrFrame},
		"length over limit":    {"\x00\x04\x00\x01" + strings.Repeat("x", 10), ErrFrame},
		"length negative":      {"\xff\xff\xff\xff", ErrFrame},
		"not JSON":             {string(packet("hello")), ErrFrame},
		"wrong type":           {string(packet(`{"seq":"1","done":{}}`)), ErrFrame},
		"no message":           {string(packet(`{"seq":1}`)), ErrFrame},
		"two messages":         {string(packet(`{"seq":1,"done":{},"trouble":{}}`)), ErrFrame},
		"unknown message only": {string(packet(`{"seq":1,"surprise":{}}`)), ErrFrame},
		"replayed":             {good + good, ErrSequence},
		"starts late":          {string(packet(`{"seq":2,"done":{}}`)), ErrSequence},
		"gap":                  {good + string(packet(`{"seq":3,"done":{}}`)), ErrSequence},
	} {
		t.Run(name, func(t *testing.T) {
			dec := NewDecoder[FromGuest](strings.NewReader(tc.stream))
			var err error
			for err == nil {
				_, err = dec.Decode()
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, again := dec.Decode(); again != err {
				t.Errorf("the decoder went on after its error: %v, then %v", err, again)
			}
		})
	}
}

func TestEncodeRefusesTooLong(t *testing.T) {
	enc := NewEncoder[ToGuest](io.Discard)
	err := enc.Encode(ToGuest{Run: &Run{Path: strings.Repeat("x", MaxFrame)}})
	if !errors.Is(err, ErrFrame) {
		t.Fatalf("got %v, want ErrFrame", err)
	}
	if err := enc.Encode(ToGuest{Finish: &Finish{}}); err != nil {
		t.Errorf("a frame refused before anything was written broke the stream: %v", err)
	}
}

func TestChunkFits(t *testing.T) {
	data := bytes.Repeat([]byte{0xff}, MaxChunk)
	err := NewEncoder[FromGuest](io.Discard).Encode(FromGuest{Output: &Output{ID: 1 << 30, Stream: 1, Data: data}})
	if err != nil {
		t.Errorf("a whole chunk does not fit a frame: %v", err)
	}
}

// fuzz checks what must hold for any input: the decoder ends, never returns
// a frame that re-encodes to something else, and numbers without gaps.
func fuzz[F Frame](f *testing.F) {
	f.Add([]byte{})
	f.Add(packet(`{"seq":1,"hello":{"version":1}}`))
	f.Add(append(packet(`{"seq":1,"kmsg":{"record":"eA=="}}`), packet(`{"seq":2,"done":{"runs":1}}`)...))
	f.Add(append(packet(`{"seq":1,"run":{"id":1,"path":"/x"}}`), packet(`{"seq":2,"finish":{}}`)...))
	f.Add([]byte("\xff\xff\xff\xff{}"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		dec := NewDecoder[F](bytes.NewReader(stream))
		var again bytes.Buffer
		enc := NewEncoder[F](&again)
		var frames []*F
		for {
			frame, err := dec.Decode()
			if err != nil {
				break
			}
			frames = append(frames, frame)
			if err := enc.Encode(*frame); err != nil && !errors.Is(err, ErrFrame) {
				t.Fatalf("re-encoding: %v", err)
			} else if err != nil {
				return
			}
		}
		dec = NewDecoder[F](&again)
		for i, want := range frames {
			got, err := dec.Decode()
			if err != nil {
				t.Fatalf("decoding frame %d again: %v", i+1, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("frame %d changed (-first +again):\n%s", i+1, diff)
			}
		}
	})
}

func FuzzFromGuest(f *testing.F) { fuzz[FromGuest](f) }

func FuzzToGuest(f *testing.F) { fuzz[ToGuest](f) }

func BenchmarkOutput(b *testing.B) {
	data := bytes.Repeat([]byte("some line of a test's output\n"), MaxChunk/29)
	var stream bytes.Buffer
	enc, dec := NewEncoder[FromGuest](&stream), NewDecoder[FromGuest](&stream)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := enc.Encode(FromGuest{Output: &Output{ID: 1, Stream: 1, Data: data}}); err != nil {
			b.Fatal(err)
		}
		if _, err := dec.Decode(); err != nil {
			b.Fatal(err)
		}
	}
}
