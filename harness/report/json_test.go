// SPDX-License-Identifier: MIT

package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"patchbay/harness/internal/fault"
	"patchbay/harness/klog"
	"patchbay/harness/verdict"
)

// schemaName is absolute: a plain name would be taken for a file below the
// working folder, which need not have a path that makes a URL.
const schemaName = "urn:patchbay:results"

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(schemaName, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(schemaName)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func decode(t *testing.T, data string) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSchemaHolds(t *testing.T) {
	s := compile(t)
	for name, run := range map[string]*verdict.Run{
		"sample": sample(t), "good": good(t), "filled": filled("x"), "hostile": filled(hostile),
		"empty": {Schema: verdict.SchemaVersion}, "no tests": {Schema: verdict.SchemaVersion, Cells: []verdict.Cell{{Outcome: verdict.Infra}}},
	} {
		if err := s.Validate(decode(t, render(t, "results.json", run))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// objects calls visit for every object in v, always in the same order.
func objects(v any, visit func(map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			objects(item, visit)
		}
	case map[string]any:
		visit(v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			objects(v[key], visit)
		}
	}
}

// TestSchemaIsStrict changes a run in every place and wants it refused: a field
// more, one less, one of another type.
func TestSchemaIsStrict(t *testing.T) {
	s := compile(t)
	text := render(t, "results.json", filled("x"))
	total := 0
	objects(decode(t, text), func(map[string]any) { total++ })
	refused := 0
	for n := range total {
		mutate := func(change func(map[string]any)) error {
			doc, i := decode(t, text), 0
			objects(doc, func(m map[string]any) {
				if i == n {
					change(m)
				}
				i++
			})
			return s.Validate(doc)
		}
		var keys []string
		_ = mutate(func(m map[string]any) { keys = slices.Sorted(maps.Keys(m)) })
		if slices.Equal(keys, []string{"x"}) {
			// A map: versions, fields.
			if mutate(func(m map[string]any) { m["x"] = 1 }) == nil {
				t.Error("a map takes what is no string")
			}
			continue
		}
		if mutate(func(m map[string]any) { m["more"] = 1 }) == nil {
			t.Errorf("%v takes another field", keys)
		}
		for _, key := range keys {
			if mutate(func(m map[string]any) { m[key] = nil }) == nil {
				t.Errorf("%s of %v may be null", key, keys)
			}
			refused++
		}
	}
	if refused < 70 {
		t.Errorf("only %d fields were tried", refused)
	}
}

// TestSchemaDescribesTheTypes holds every property against the Go type that it
// is made from.
func TestSchemaDescribesTheTypes(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(Schema(), &root); err != nil {
		t.Fatal(err)
	}
	defs := root["$defs"].(map[string]any)
	seen := map[string]bool{}
	var walk func(typ reflect.Type, node map[string]any, at string)
	walk = func(typ reflect.Type, node map[string]any, at string) {
		if node == nil {
			t.Errorf("%s is not in the schema", at)
			return
		}
		if ref, ok := node["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/$defs/")
			if seen[name] = true; defs[name] == nil {
				t.Fatalf("no such $ref: %s", ref)
			}
			node = defs[name].(map[string]any)
		}
		want := ""
		switch typ.Kind() {
		case reflect.Pointer:
			walk(typ.Elem(), node, at)
			return
		case reflect.Slice:
			want = "array"
			items, _ := node["items"].(map[string]any)
			walk(typ.Elem(), items, at+"[]")
		case reflect.Map:
			want = "object"
			items, _ := node["additionalProperties"].(map[string]any)
			walk(typ.Elem(), items, at+"{}")
		case reflect.String:
			want = "string"
		case reflect.Bool:
			want = "boolean"
		case reflect.Int, reflect.Int64, reflect.Uint8, reflect.Uint64:
			want = "integer"
			if node["enum"] != nil || node["const"] != nil {
				want = ""
			}
		case reflect.Struct:
			want = "object"
		}
		switch typ {
		case reflect.TypeFor[verdict.Outcome](), reflect.TypeFor[fault.Blame]():
			return
		case reflect.TypeFor[time.Time]():
			want = "string"
		default:
			if typ.Kind() == reflect.Struct {
				fields(t, typ, node, at, walk)
			}
		}
		if got, _ := node["type"].(string); got != want {
			t.Errorf("%s has type %q, want %q", at, got, want)
		}
	}
	walk(reflect.TypeFor[verdict.Run](), root, "run")
	for name := range defs {
		if !seen[name] {
			t.Errorf("nothing refers to $defs/%s", name)
		}
	}
	// The enums are those of the types.
	var all, tests, blames []string
	for _, o := range verdict.Outcomes() {
		if all = append(all, o.String()); o < verdict.Boot {
			tests = append(tests, o.String())
		}
	}
	for b := fault.Blame(1); new(fault.Blame).UnmarshalText([]byte(b.String())) == nil; b++ {
		blames = append(blames, b.String())
	}
	enum := func(node any) (names []string) {
		for _, v := range node.(map[string]any)["enum"].([]any) {
			names = append(names, v.(string))
		}
		return names
	}
	failure := defs["failure"].(map[string]any)["properties"].(map[string]any)
	for _, diff := range []string{
		cmp.Diff(all, enum(defs["outcome"])), cmp.Diff(tests, enum(defs["test_outcome"])), cmp.Diff(blames, enum(failure["blame"])),
	} {
		if diff != "" {
			t.Errorf("(-types +schema):\n%s", diff)
		}
	}
}

// fields compares the fields of a struct with the properties of an object.
func fields(t *testing.T, typ reflect.Type, node map[string]any, at string, walk func(reflect.Type, map[string]any, string)) {
	t.Helper()
	properties, _ := node["properties"].(map[string]any)
	var names, required []string
	add := func(name string, optional bool) map[string]any {
		names = append(names, name)
		if !optional {
			required = append(required, name)
		}
		p, _ := properties[name].(map[string]any)
		return p
	}
	if typ == reflect.TypeFor[klog.Record]() {
		// It writes its own JSON: ask that.
		full := filled("x").Cells[0].Log[0]
		for i, r := range []klog.Record{full, {}} {
			data, _ := json.Marshal(r)
			var m map[string]any
			if err := json.Unmarshal(data, &m); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				names = slices.Sorted(maps.Keys(m))
			} else {
				required = slices.Sorted(maps.Keys(m))
			}
		}
	} else {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			walk(f.Type, add(name, strings.Contains(rest, "omit")), at+"."+name)
		}
	}
	slices.Sort(names)
	slices.Sort(required)
	if diff := cmp.Diff(names, slices.Sorted(maps.Keys(properties))); diff != "" {
		t.Errorf("%s (-type +schema):\n%s", at, diff)
	}
	var got []string
	for _, v := range node["required"].([]any) {
		got = append(got, v.(string))
	}
	slices.Sort(got)
	if diff := cmp.Diff(required, got); diff != "" {
		t.Errorf("required in %s (-type +schema):\n%s", at, diff)
	}
	if more, ok := node["additionalProperties"].(bool); !ok || more {
		t.Errorf("%s takes more fields", at)
	}
	for name, p := range properties {
		p := p.(map[string]any)
		text, _ := p["description"].(string)
		if _, ref := p["$ref"]; text == "" && !ref {
			t.Errorf("%s.%s has no description", at, name)
		}
		for suffix, unit := range map[string]string{"_ns": "nanoseconds", "_us": "microseconds", "_bytes": "bytes"} {
			if strings.HasSuffix(name, suffix) && !strings.Contains(text, unit) {
				t.Errorf("%s.%s does not say that it is in %s", at, name, unit)
			}
		}
	}
}

func TestReadJSON(t *testing.T) {
	dir := t.TempDir()
	for _, run := range []*verdict.Run{sample(t), good(t), filled("x")} {
		if err := WriteAll(dir, run); err != nil {
			t.Fatal(err)
		}
		got, err := ReadJSON(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i := range run.Cells {
			run.Cells[i].KernelLog = nil // kernel.log has it
		}
		if diff := cmp.Diff(run, got); diff != "" {
			t.Errorf("(-written +read):\n%s", diff)
		}
	}
	path := filepath.Join(dir, "results.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ text, dir, want string }{
		"missing":       {dir: t.TempDir(), want: "finished run"},
		"no folder":     {dir: filepath.Join(dir, "nowhere"), want: "finished run"},
		"the file":      {text: string(whole), dir: path, want: "not a file: " + dir},
		"empty":         {text: "", want: "not the JSON of a run"},
		"no JSON":       {text: "<html>", want: "not the JSON of a run"},
		"cut":           {text: string(whole[:len(whole)/2]), want: "not the JSON of a run"},
		"more":          {text: string(whole) + "{}", want: "not the JSON of a run"},
		"other JSON":    {text: `{"a": 1}`, want: "no schema version"},
		"a list":        {text: `[1]`, want: "not the JSON of a run"},
		"newer":         {text: `{"schema": 2, "cells": {}}`, want: "schema version 2; this patchbay reads version 1"},
		"no outcome":    {text: `{"schema": 1, "cells": [{"outcome": "fine"}]}`, want: `no such outcome: "fine"`},
		"results is it": {dir: "/", want: "finished run"},
	} {
		if tc.dir == "" {
			tc.dir = dir
		}
		if err := os.WriteFile(path, []byte(tc.text), 0o644); err != nil {
			t.Fatal(err)
		}
		run, err := ReadJSON(tc.dir)
		var f *fault.Error
		if run != nil || !errors.As(err, &f) || f.Blame != fault.Configuration || f.Next == "" || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
