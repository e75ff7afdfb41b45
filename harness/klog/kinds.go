// SPDX-License-Identifier: MIT

package klog

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed kinds.yaml
var kindsYAML []byte

// How a report ends; kinds.yaml explains them.
const (
	endsTrace = "trace"
	endsRule  = "rule"
	endsStack = "stack"
	endsLine  = "line"
	endsPanic = "panic"
)

// Where the function in a title comes from; kinds.yaml explains them.
const (
	whereRIP   = "rip"
	whereLock  = "lock"
	whereFrame = "frame"
)

// kind is one entry of kinds.yaml.
type kind struct {
	Name      string   `yaml:"name"`
	Headlines []string `yaml:"headlines"`
	Title     string   `yaml:"title"`
	Where     string   `yaml:"where"`
	Ends      string   `yaml:"ends"`
	After     string   `yaml:"after"`
	Bare      bool     `yaml:"bare"`
	Continues []string `yaml:"continues"`
	Refines   []string `yaml:"refines"`
	Fatal     bool     `yaml:"fatal"`
	Follows   []string `yaml:"follows"`
	First     bool     `yaml:"first"`

	follows *regexp.Regexp
}

// headline is one compiled regular expression of a kind.
type headline struct {
	kind *kind
	// prefix is literal: what a line must begin with for re to be tried.
	prefix string
	re     *regexp.Regexp
}

// table is kinds.yaml, ready for use. It is not changed once loaded.
type table struct {
	kinds []*kind
	// byFirst has the headlines by their first byte, in the order of the file.
	byFirst [256][]headline
	helpers *regexp.Regexp
}

// builtIn is the table in the binary. That it loads is proved by a test.
var builtIn = sync.OnceValue(func() *table {
	t, err := loadKinds(kindsYAML)
	if err != nil {
		panic("klog: kinds.yaml: " + err.Error())
	}
	return t
})

// loadKinds parses and checks a table of kinds.
func loadKinds(data []byte) (*table, error) {
	var file struct {
		Helpers []string `yaml:"helpers"`
		Kinds   []*kind  `yaml:"kinds"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&file); err != nil {
		return nil, err
	}
	if len(file.Kinds) == 0 {
		return nil, errors.New("no kinds")
	}
	t := &table{kinds: file.Kinds}
	var err error
	if t.helpers, err = regexp.Compile(`^(?:` + strings.Join(file.Helpers, "|") + `)$`); err != nil {
		return nil, fmt.Errorf("helpers: %w", err)
	}
	known := map[string]bool{}
	for _, k := range t.kinds {
		if known[k.Name] {
			return nil, fmt.Errorf("kind %q is there twice", k.Name)
		}
		known[k.Name] = true
	}
	for _, k := range t.kinds {
		if err := t.prepare(k, known); err != nil {
			return nil, fmt.Errorf("kind %q: %w", k.Name, err)
		}
	}
	return t, nil
}

func (t *table) prepare(k *kind, known map[string]bool) error {
	if k.Name == "" || k.Title == "" || len(k.Headlines) == 0 {
		return errors.New("name, title and headlines must be given")
	}
	switch k.Ends {
	case endsTrace, endsRule, endsStack, endsLine, endsPanic:
	default:
		return fmt.Errorf("ends: %q is unknown", k.Ends)
	}
	switch k.Where {
	case "", whereRIP, whereLock, whereFrame:
	default:
		return fmt.Errorf("where: %q is unknown", k.Where)
	}
	for _, name := range append(k.Continues, k.Refines...) {
		if !known[name] {
			return fmt.Errorf("there is no kind %q", name)
		}
	}
	if k.After == "" {
		k.After = callTrace
	}
	if len(k.Follows) > 0 {
		var err error
		if k.follows, err = regexp.Compile(`^(?:` + strings.Join(k.Follows, "|") + `)`); err != nil {
			return err
		}
	}
	for _, h := range k.Headlines {
		bare, err := regexp.Compile(h)
		if err != nil {
			return err
		}
		// The prefix is taken from the expression itself, so that the two can
		// never disagree.
		prefix, _ := bare.LiteralPrefix()
		if len(prefix) < 4 {
			return fmt.Errorf("headline %q begins with less than 4 literal characters", h)
		}
		t.byFirst[prefix[0]] = append(t.byFirst[prefix[0]], headline{k, prefix, regexp.MustCompile(`^(?:` + h + `)`)})
	}
	return nil
}

// match finds the kind whose headline the line is.
func (t *table) match(line string) (*kind, map[string]string) {
	if line == "" {
		return nil, nil
	}
	for _, h := range t.byFirst[line[0]] {
		if !strings.HasPrefix(line, h.prefix) {
			continue
		}
		if m := h.re.FindStringSubmatch(line); m != nil {
			groups := map[string]string{}
			for i, name := range h.re.SubexpNames() {
				if name != "" {
					groups[name] = m[i]
				}
			}
			return h.kind, groups
		}
	}
	return nil, nil
}

var (
	optional    = regexp.MustCompile(`\[([^\[\]{}]*)\{(\w+)\}([^\[\]{}]*)\]`)
	placeholder = regexp.MustCompile(`\{(\w+)\}`)
)

// title fills the kind's template.
func (k *kind) title(groups map[string]string) string {
	out := optional.ReplaceAllStringFunc(k.Title, func(part string) string {
		if groups[placeholder.FindStringSubmatch(part)[1]] == "" {
			return ""
		}
		return part[1 : len(part)-1]
	})
	return placeholder.ReplaceAllStringFunc(out, func(p string) string {
		name := p[1 : len(p)-1]
		switch value := groups[name]; name {
		case "func":
			return cleanFunc(value)
		case "comm":
			return cleanComm(value)
		case "file", "cache", "type", "reason":
			return value
		default:
			return cleanText(value)
		}
	})
}

var (
	symbol   = regexp.MustCompile(`^([A-Za-z_][\w.]*)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?$`)
	suffix   = regexp.MustCompile(`\.(?:constprop|isra|part|cold|llvm|lto_priv)\b.*$`)
	offset   = regexp.MustCompile(`\+0x[0-9a-f]+/0x[0-9a-f]+`)
	number   = regexp.MustCompile(`\b(?:0x[0-9a-fA-F]+|[0-9a-f]{8,}|[0-9]+)\b`)
	workerID = regexp.MustCompile(`[/:].*$|[0-9]+$`)
)

// cleanFunc makes "foo.isra.0+0x12/0x34" to "foo", and an address to "N". It
// takes two functions with " / " between them, too.
func cleanFunc(s string) string {
	parts := strings.Split(s, " / ")
	for i, p := range parts {
		if m := symbol.FindStringSubmatch(p); m != nil {
			parts[i] = suffix.ReplaceAllString(m[1], "")
		} else {
			parts[i] = cleanText(p)
		}
	}
	return strings.Join(parts, " / ")
}

// cleanComm makes "kworker/2:1" to "kworker" and "worker12" to "worker".
func cleanComm(s string) string {
	if c := workerID.ReplaceAllString(s, ""); c != "" {
		return c
	}
	return "N"
}

// cleanText replaces addresses and numbers, which differ from run to run.
func cleanText(s string) string {
	return strings.TrimSpace(number.ReplaceAllString(offset.ReplaceAllString(s, ""), "N"))
}
