// SPDX-License-Identifier: MIT

package klog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"patchbay/harness/internal/fault"
)

func us(n int) time.Duration { return time.Duration(n) * time.Microsecond }

func TestParseKmsg(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want Record
	}{
		"plain":         {"6,339,5140900,-;NET: Registered protocol family 10\n", Record{Seq: 339, Level: 6, Time: us(5140900), Text: "NET: Registered protocol family 10"}},
		"caller":        {"4,12,99,-,caller=C3;x\n", Record{Seq: 12, Level: 4, Time: us(99), Caller: "C3", Text: "x"}},
		"user space":    {"12,13,99,-,caller=T1;marker\n", Record{Seq: 13, Level: 4, Facility: 1, Time: us(99), Caller: "T1", Text: "marker"}},
		"a fragment":    {"6,14,99,c;more\n", Record{Seq: 14, Level: 6, Time: us(99), Text: "more", Cont: true}},
		"fields":        {"7,160,424069,-;pci_root PNP0A03:00: x\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n", Record{Seq: 160, Level: 7, Time: us(424069), Text: "pci_root PNP0A03:00: x", Fields: map[string]string{"SUBSYSTEM": "acpi", "DEVICE": "+acpi:PNP0A03:00"}}},
		"escapes stay":  {`6,1,2,-;a\x0ab\x5cn` + "\n", Record{Seq: 1, Level: 6, Time: us(2), Text: `a\x0ab\x5cn`}},
		"unknown extra": {"6,1,2,-,caller=T1,cpu=3,;x;y\n", Record{Seq: 1, Level: 6, Time: us(2), Caller: "T1", Text: "x;y"}},
		"a bad caller":  {"6,1,2,-,caller=\x1b[2J;x\n", Record{Seq: 1, Level: 6, Time: us(2), Text: "x"}},
		"no newline":    {"6,1,2,-;x", Record{Seq: 1, Level: 6, Time: us(2), Text: "x"}},
		"empty text":    {"6,1,2,-;\n", Record{Seq: 1, Level: 6, Time: us(2)}},
		"raw bytes":     {"6,1,2,-;a\x1b[31m\xffb\n K\x07=v\x00\n", Record{Seq: 1, Level: 6, Time: us(2), Text: `a\x1b[31m\xffb`, Fields: map[string]string{`K\x07`: `v\x00`}}},
		"facility 255":  {"2047,18446744073709551615,2,-;x\n", Record{Seq: 1<<64 - 1, Level: 7, Facility: 255, Time: us(2), Text: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseKmsg([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for name, in := range map[string]string{
		"empty": "", "no semicolon": "6,1,2,-", "too few": "6,1,2;x", "priority": "x,1,2,-;x", "priority too large": "2048,1,2,-;x",
		"negative": "6,-1,2,-;x", "number too large": "6,18446744073709551616,2,-;x", "time": "6,1,t,-;x", "time too large": "6,1,9223372036854775807,-;x",
		"too long": "6,1,2,-;" + strings.Repeat("x", maxRecord),
	} {
		_, err := ParseKmsg([]byte(in))
		var f *fault.Error
		if !errors.As(err, &f) || f.Blame != fault.Harness || f.Next == "" {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

func TestRecordJSON(t *testing.T) {
	want := Record{Seq: 7, Level: 4, Facility: 1, Time: us(1234567), Caller: "T12", Text: `a\x0ab`, Cont: true, Fields: map[string]string{"DEVICE": "n8"}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const text = `{"seq":7,"level":4,"facility":1,"time_us":1234567,"caller":"T12","text":"a\\x0ab","cont":true,"fields":{"DEVICE":"n8"}}`
	if string(data) != text {
		t.Errorf("got  %s\nwant %s", data, text)
	}
	var got Record
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{`{"time_us":-1}`, `{"time_us":9223372036854775807}`, `{"level":256}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestParseConsole(t *testing.T) {
	const unknown = LevelUnknown
	for name, c := range map[string]struct {
		in   string
		want []Record
	}{
		"nothing":     {"", nil},
		"with caller": {"[    1.234567][    T1] text\n", []Record{{Level: unknown, Time: us(1234567), Caller: "T1", Text: "text"}}},
		"with level": {
			"<4>[12345.000001] text\n<12>[12345.000002][ C123] user\n",
			[]Record{{Level: 4, Time: us(12345000001), Text: "text"}, {Level: 4, Facility: 1, Time: us(12345000002), Caller: "C123", Text: "user"}},
		},
		"no prefixes at all": {"a\n<4>b\n", []Record{{Level: unknown, Text: "a"}, {Level: 4, Text: "b"}}},
		"carriage returns":   {"[    1.000000] a\r\n[    1.000000] \r\r\n", []Record{{Level: unknown, Time: us(1000000), Text: "a"}, {Level: unknown, Time: us(1000000)}}},
		"a program's lines": {
			"[    1.000000] a\nhello\n\n[    1.000001] b\n",
			[]Record{{Level: unknown, Time: us(1000000), Text: "a"}, {Level: unknown, Facility: 1, Text: "hello"}, {Level: unknown, Facility: 1}, {Level: unknown, Time: us(1000001), Text: "b"}},
		},
		"no text bytes": {"[    1.000000] a\x00\x1b[2J\t\xff\\\n", []Record{{Level: unknown, Time: us(1000000), Text: `a\x00\x1b[2J\x09\xff\x5c`}}},
		"cut by another writer": {
			"[    1.000000][    T1] BUG: KAS[    1.000002][   C0] b\nhello [    1.000003] c\n",
			[]Record{
				{Level: unknown, Time: us(1000000), Caller: "T1", Text: "BUG: KAS"},
				{Level: unknown, Time: us(1000002), Caller: "C0", Text: "b"},
				{Level: unknown, Facility: 1, Text: "hello "},
				{Level: unknown, Time: us(1000003), Text: "c"},
			},
		},
		"quoted times stay": {"[    1.000000] at [1.500000] and [    2.0] and [    1.000001]x\n", []Record{{Level: unknown, Time: us(1000000), Text: "at [1.500000] and [    2.0] and [    1.000001]x"}}},
		"dropped": {
			"** 12 printk messages dropped **\n[    1.000000] a\n",
			[]Record{{Level: unknown, Text: "** 12 printk messages dropped **"}, {Level: unknown, Time: us(1000000), Text: "a"}},
		},
		"the end is missing": {"[    1.000000] a\n[    1.00", []Record{{Level: unknown, Time: us(1000000), Text: "a"}, {Level: unknown, Facility: 1, Text: "[    1.00"}}},
		"very long": {
			"[    1.000000] " + strings.Repeat("x", 4096) + "\n" + strings.Repeat("y", 4096) + "\nz\n",
			[]Record{
				{Level: unknown, Time: us(1000000), Text: strings.Repeat("x", 4096-15)},
				{Level: unknown, Text: strings.Repeat("x", 15), Cont: true},
				{Level: unknown, Facility: 1, Text: strings.Repeat("y", 4096)},
				{Level: unknown, Facility: 1, Text: "z"},
			},
		},
		"a program's, very long": {
			"[    1.000000] a\n" + strings.Repeat("y", 9000) + "\n",
			[]Record{
				{Level: unknown, Time: us(1000000), Text: "a"},
				{Level: unknown, Facility: 1, Text: strings.Repeat("y", 4096)},
				{Level: unknown, Facility: 1, Text: strings.Repeat("y", 4096), Cont: true},
				{Level: unknown, Facility: 1, Text: strings.Repeat("y", 808), Cont: true},
			},
		},
		"a time too large": {"[99999999999999999.000000] a\n", []Record{{Level: unknown, Text: "[99999999999999999.000000] a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseConsole(strings.NewReader(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}

	broken := io.MultiReader(strings.NewReader("[    1.000000] a\n"), iotest.ErrReader(errors.New("disk on fire")))
	got, err := ParseConsole(broken)
	var f *fault.Error
	if len(got) != 1 || !errors.As(err, &f) || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("%v, %v", got, err)
	}
}

// realLog is a kernel that was made to panic, as both ways tell of it; the
// records of /dev/kmsg are separated by NUL.
func realLog(t *testing.T) (kmsg, console []Record) {
	t.Helper()
	data, err := os.ReadFile("testdata/real/panic.kmsg")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range bytes.Split(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		r, err := ParseKmsg(one)
		if err != nil {
			t.Fatal(err)
		}
		kmsg = append(kmsg, r)
	}
	return kmsg, readConsole(t, "testdata/real/panic.console")
}

func TestMergeOfARealPanic(t *testing.T) {
	kmsg, console := realLog(t)
	if splats := Detect(kmsg); len(splats) != 0 {
		t.Fatalf("before the panic: %+v", splats)
	}
	merged := Merge(kmsg, console)
	if diff := cmp.Diff(kmsg, merged[:len(kmsg)]); diff != "" {
		t.Errorf("the records of kmsg do not come first (-kmsg +merged):\n%s", diff)
	}
	rest := merged[len(kmsg):]
	if len(rest) != 28 || rest[0].Text != "sysrq: Trigger a crash" || rest[27].Text != "Kernel Offset: disabled" {
		t.Errorf("%d more records: %+v", len(rest), rest)
	}
	splats := Detect(merged)
	if len(splats) != 1 || splats[0].Title != "Kernel panic: sysrq triggered crash" || !splats[0].Fatal || splats[0].Incomplete {
		t.Errorf("%+v", splats)
	}
}

func TestMerge(t *testing.T) {
	k := func(n int, text string) Record { return Record{Seq: uint64(n), Time: us(n), Text: text} }
	c := func(n int, text string) Record { return Record{Level: LevelUnknown, Time: us(n), Text: text} }
	notice := Record{Level: LevelUnknown, Text: "** 3 printk messages dropped **"}
	for name, x := range map[string]struct{ kmsg, console, want []Record }{
		"no console":             {[]Record{k(1, "a")}, nil, []Record{k(1, "a")}},
		"no kmsg":                {nil, []Record{c(1, "a"), c(1, "a")}, []Record{c(1, "a"), c(1, "a")}},
		"all delivered":          {[]Record{k(1, "a"), k(2, "b")}, []Record{c(2, "b")}, []Record{k(1, "a"), k(2, "b")}},
		"last words":             {[]Record{k(1, "a"), k(2, "b")}, []Record{c(1, "a"), c(3, "c"), c(3, "d")}, []Record{k(1, "a"), k(2, "b"), c(3, "c"), c(3, "d")}},
		"lost in the middle":     {[]Record{k(1, "a"), k(5, "b")}, []Record{c(1, "a"), c(3, "x"), c(5, "b")}, []Record{k(1, "a"), c(3, "x"), k(5, "b")}},
		"same time, other text":  {[]Record{k(1, "a")}, []Record{c(1, "b")}, []Record{k(1, "a"), c(1, "b")}},
		"several lines in one":   {[]Record{k(1, `\x0aone\x0atwo`)}, []Record{c(1, ""), c(1, "one"), c(1, "two")}, []Record{k(1, `\x0aone\x0atwo`)}},
		"a line cut short":       {[]Record{k(1, "abcdef")}, []Record{c(1, "abc")}, []Record{k(1, "abcdef")}},
		"an empty line":          {[]Record{k(1, "a")}, []Record{c(1, "")}, []Record{k(1, "a"), c(1, "")}},
		"a program's line":       {[]Record{k(1, "a")}, []Record{c(1, "a"), {Facility: 1, Text: "hello"}}, []Record{k(1, "a")}},
		"a notice that is moot":  {[]Record{k(1, "a"), k(2, "b")}, []Record{c(1, "a"), notice, c(2, "b")}, []Record{k(1, "a"), k(2, "b")}},
		"a notice that matters":  {[]Record{k(1, "a")}, []Record{c(1, "a"), notice, c(9, "z")}, []Record{k(1, "a"), notice, c(9, "z")}},
		"a notice at the end":    {[]Record{k(1, "a")}, []Record{c(1, "a"), notice}, []Record{k(1, "a"), notice}},
		"a console without time": {[]Record{k(1, "a"), k(2, "b")}, []Record{c(0, "a"), c(0, "b"), c(0, "c")}, []Record{k(1, "a"), k(2, "b"), c(0, "c")}},
		"printed again by panic": {[]Record{k(1, "a"), k(2, "b")}, []Record{c(2, "b"), c(3, "c"), c(1, "a"), c(2, "b")}, []Record{k(1, "a"), k(2, "b"), c(3, "c")}},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]Record(nil), x.kmsg...)
			if diff := cmp.Diff(x.want, Merge(x.kmsg, x.console)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, append([]Record(nil), x.kmsg...)); diff != "" {
				t.Errorf("the argument was changed:\n%s", diff)
			}
		})
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		`plain \x1b stays`:     `plain \x1b stays`,
		"a\tb\r\n":             `a\x09b\x0d\x0a`,
		"\x1b[2J\x07\x00\x7f":  `\x1b[2J\x07\x00\x7f`,
		"\xff\xc3":             `\xff\xc3`,
		"grün 日本":              "grün 日本",
		"\u009b31m":            `\u009b31m`,
		"a\u202eb\u2066c":      `a\u202eb\u2066c`,
		"x\u2028y\u00a0\u200b": `x\u2028y\u00a0\u200b`,
		"\U000e0001":           `\U000e0001`,
		"\ufffd":               "\ufffd",
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r >= 127 }) < 0
}

func FuzzParseKmsg(f *testing.F) {
	f.Add([]byte("7,160,424069,-,caller=T1;pci_root PNP0A03:00: x\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n"))
	f.Add([]byte("12,1,2,c;\x1b[2J\\x0a\n =\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseKmsg(data)
		if err != nil {
			return
		}
		if !printable(r.Text) || (r.Caller != "" && !isCaller(r.Caller)) || r.Time < 0 || r.Level > 7 {
			t.Errorf("%q gives %+v", data, r)
		}
		for k, v := range r.Fields {
			if !printable(k) || !printable(v) {
				t.Errorf("%q gives field %q=%q", data, k, v)
			}
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var again Record
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("through JSON:\n%s", diff)
		}
		Detect([]Record{r, r})
	})
}

func FuzzParseConsole(f *testing.F) {
	f.Add([]byte("<4>[    1.234567][    T1] BUG: KASAN: a in b\r\nx[    1.234568] y\n** 3 printk messages dropped **\n"))
	f.Add([]byte("[    1.0"))
	f.Add(bytes.Repeat([]byte("[    1.000000] "), 300))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := ParseConsole(iotest.OneByteReader(bytes.NewReader(data)))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if !printable(r.Text) || (r.Caller != "" && !isCaller(r.Caller)) || r.Time < 0 || len(r.Text) > 4*maxConsoleLine {
				t.Errorf("%+v", r)
			}
		}
		for _, s := range Detect(records) {
			if s.First < 0 || s.Last < s.First || s.Last >= len(records) || s.Title == "" || s.Line == "" {
				t.Errorf("%d records, %+v", len(records), s)
			}
		}
		if n := len(Merge(records, records)); n < len(records) {
			t.Errorf("%d records merged with themselves: %d", len(records), n)
		}
	})
}

func TestDetectSurvivesAnyOrder(t *testing.T) {
	// Every golden log into one, and that backwards: nothing may be lost of the
	// indexes' order, whatever the state.
	var all []Record
	for _, file := range logFiles(t, "splats") {
		all = append(all, readConsole(t, file)...)
	}
	for range 2 {
		for _, s := range Detect(all) {
			if s.First < 0 || s.Last < s.First || s.Last >= len(all) || s.Title == "" {
				t.Errorf("%+v", s)
			}
		}
		for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
			all[i], all[j] = all[j], all[i]
		}
	}
}
