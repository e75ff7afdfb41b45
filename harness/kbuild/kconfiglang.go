// SPDX-License-Identifier: MIT

package kbuild

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// definition is one place where a Kconfig file defines a symbol.
type definition struct {
	// depends are the conditions of the symbol itself and of what surrounds
	// it: menus, if blocks, choices.
	depends []string
	// prompts are the conditions under which people may set it, "" for none.
	// Without any, nobody may.
	prompts []string
	// choice numbers the choice that it is a member of; 0 is none.
	choice int
}

// kconfig is what the Kconfig files of a tree define.
type kconfig struct {
	symbols map[string][]definition
	// selectors are the symbols that select a symbol.
	selectors map[string][]string
	choices   int
}

// readKconfig reads all Kconfig files of a tree but those of other
// architectures. It understands just enough of the language to explain why a
// symbol did not get its value.
func readKconfig(src, arch string) (*kconfig, error) {
	k := &kconfig{symbols: map[string][]definition{}, selectors: map[string][]string{}}
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			parent, name := filepath.Split(rel)
			if parent == "arch/" && name != arch || rel == "Documentation" || rel == "tools" || rel == "scripts/kconfig/tests" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasPrefix(d.Name(), "Kconfig") || !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		k.add(string(data))
		return nil
	})
	return k, err
}

var (
	keyword    = regexp.MustCompile(`^\s*(?:(config|menuconfig)\s+(\w+)|(choice|menu|if|comment|source|mainmenu|endchoice|endmenu|endif)\b\s*(.*))$`)
	attribute  = regexp.MustCompile(`^\s+(depends\s+on|visible\s+if|select|prompt|bool|tristate|string|int|hex)\b\s*(.*)$`)
	helpText   = regexp.MustCompile(`^\s+(?:---)?help(?:---)?\s*$`)
	quoted     = regexp.MustCompile(`^"(?:[^"\\]|\\.)*"|^'[^']*'`)
	trailingIf = regexp.MustCompile(`(?:^|\s)if\s+(.*)$`)
)

// block is an open menu, if or choice.
type block struct {
	depends []string
	choice  int
}

// add reads one file.
func (k *kconfig) add(text string) {
	var (
		blocks []block
		entry  string      // the symbol that attributes belong to, or ""
		def    *definition // its definition here
		inHead bool        // attributes belong to the innermost block
		inHelp bool
		indent int // of the help text
	)
	surrounding := func() (depends []string, choice int) {
		for _, b := range blocks {
			depends = append(depends, b.depends...)
			choice = max(choice, b.choice)
		}
		return depends, choice
	}
	finish := func() {
		if def == nil {
			return
		}
		// Only now: a menu's own conditions may follow its name.
		k.symbols[entry] = append(k.symbols[entry], *def)
		def = nil
	}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimRight(strings.ReplaceAll(line, "\t", "        "), " \n")
		if line == "" {
			continue
		}
		if inHelp {
			own := len(line) - len(strings.TrimLeft(line, " "))
			if indent < 0 {
				indent = own
			}
			if own >= indent && own > 0 {
				continue
			}
			inHelp = false
		}
		if helpText.MatchString(line) {
			inHelp, indent = true, -1
			continue
		}
		if m := keyword.FindStringSubmatch(line); m != nil {
			finish()
			inHead = false
			if m[1] != "" {
				entry, def = m[2], &definition{}
				def.depends, def.choice = surrounding()
				continue
			}
			switch m[3] {
			case "menu":
				blocks, inHead = append(blocks, block{}), true
			case "choice":
				k.choices++
				blocks, inHead = append(blocks, block{choice: k.choices}), true
			case "if":
				blocks = append(blocks, block{depends: []string{stripComment(m[4])}})
			case "endmenu", "endchoice", "endif":
				if len(blocks) > 0 {
					blocks = blocks[:len(blocks)-1]
				}
			}
			continue
		}
		m := attribute.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		what, rest := strings.Join(strings.Fields(m[1]), " "), stripComment(m[2])
		if what == "depends on" {
			rest = strings.Join(strings.Fields(rest), " ")
			if c := trailingIf.FindStringSubmatch(rest); c != nil {
				rest = fmt.Sprintf("(%s) || !(%s)", strings.TrimSpace(strings.TrimSuffix(rest, c[0])), c[1])
			}
		}
		switch {
		case inHead && what == "depends on":
			last := &blocks[len(blocks)-1]
			last.depends = append(last.depends, rest)
		case def == nil:
		case what == "depends on":
			def.depends = append(def.depends, rest)
		case what == "select":
			if target := strings.Fields(rest); len(target) > 0 {
				k.selectors[target[0]] = append(k.selectors[target[0]], entry)
			}
		case what != "visible if" && quoted.MatchString(rest):
			prompt := ""
			if c := trailingIf.FindStringSubmatch(quoted.ReplaceAllString(rest, "")); c != nil {
				prompt = c[1]
			}
			def.prompts = append(def.prompts, prompt)
		}
	}
	finish()
}

// stripComment drops a comment at the end of a line.
func stripComment(s string) string {
	inQuote := false
	for i := range len(s) {
		switch {
		case s[i] == '"':
			inQuote = !inQuote
		case s[i] == '#' && !inQuote:
			return strings.TrimSpace(s[:i])
		}
	}
	return strings.TrimSpace(s)
}

func (k *kconfig) known(symbol string) bool { return len(k.symbols[symbol]) > 0 }

// reasons says why the symbol has not got the requested value.
func (k *kconfig) reasons(want setting, got configuration) []string {
	defs := k.symbols[want.symbol]
	if len(defs) == 0 {
		return []string{"this tree has no such symbol"}
	}
	var (
		reasons  []string
		possible bool // some definition has all its dependencies
		settable bool
	)
	for _, d := range defs {
		var unmet []string
		for _, dep := range d.depends {
			if evaluate(dep, got) != yes {
				unmet = append(unmet, "depends on "+dep+values(dep, got))
			}
		}
		if unmet != nil {
			reasons = append(reasons, unmet...)
			continue
		}
		possible = true
		for _, p := range d.prompts {
			if p == "" || evaluate(p, got) == yes {
				settable = true
			} else {
				reasons = append(reasons, "can be set only if "+p+values(p, got))
			}
		}
		if d.choice == 0 {
			continue
		}
		for other, its := range k.symbols {
			if other != want.symbol && got[other] == "y" && slices.ContainsFunc(its, func(o definition) bool { return o.choice == d.choice }) {
				reasons = append(reasons, "of the same choice, "+other+" is set")
			}
		}
	}
	if !possible {
		return compact(reasons)
	}
	for _, s := range compact(k.selectors[want.symbol]) {
		if got.value(s) == "y" && want.value == "n" {
			reasons = append(reasons, "selected by "+s)
		}
	}
	if !settable && len(reasons) == 0 {
		reasons = append(reasons, "it cannot be set, only be selected by others or follow a default")
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "its dependencies seem to be met; see the log for a complaint about the value")
	}
	return compact(reasons)
}

func compact(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

var symbolWord = regexp.MustCompile(`"[^"]*"|'[^']*'|\$\([^)]*\)|[A-Za-z_0-9]+`)

// values lists what the symbols of an expression are set to.
func values(expr string, got configuration) string {
	seen := map[string]bool{}
	for _, w := range symbolWord.FindAllString(expr, -1) {
		if isSymbol(w) {
			seen[w+"="+got.value(w)] = true
		}
	}
	if len(seen) == 0 {
		return ""
	}
	return " (" + strings.Join(slices.Sorted(maps.Keys(seen)), ", ") + ")"
}

func isSymbol(word string) bool {
	if word == "" || word == "y" || word == "n" || word == "m" || strings.ContainsAny(word[:1], `"'$`) {
		return false
	}
	_, err := strconv.ParseInt(word, 0, 64)
	return err != nil
}

// truth is the value of an expression. What the Kconfig preprocessor would have
// to work out is unknown.
type truth uint8

const (
	_ truth = iota
	no
	yes
	unknown
)

// evaluate works out a dependency expression. m counts as yes.
func evaluate(expr string, got configuration) truth {
	p := &parser{words: exprWord.FindAllString(expr, -1), got: got}
	v := p.or()
	if p.failed || len(p.words) > 0 {
		return unknown
	}
	return v
}

var exprWord = regexp.MustCompile(`&&|\|\||!=|<=|>=|[!=<>()]|"[^"]*"|'[^']*'|\$\([^)]*\)|[A-Za-z_0-9]+|\S`)

type parser struct {
	words  []string
	got    configuration
	failed bool
}

func (p *parser) peek() string {
	if len(p.words) == 0 {
		return ""
	}
	return p.words[0]
}

func (p *parser) next() string {
	w := p.peek()
	if w == "" {
		p.failed = true
		return ""
	}
	p.words = p.words[1:]
	return w
}

func (p *parser) or() truth {
	v := p.and()
	for p.peek() == "||" {
		p.next()
		w := p.and()
		switch {
		case v == yes || w == yes:
			v = yes
		case v == unknown || w == unknown:
			v = unknown
		}
	}
	return v
}

func (p *parser) and() truth {
	v := p.not()
	for p.peek() == "&&" {
		p.next()
		w := p.not()
		switch {
		case v == no || w == no:
			v = no
		case v == unknown || w == unknown:
			v = unknown
		}
	}
	return v
}

func (p *parser) not() truth {
	switch w := p.next(); w {
	case "!":
		switch p.not() {
		case yes:
			return no
		case no:
			return yes
		default:
			return unknown
		}
	case "(":
		v := p.or()
		if p.next() != ")" {
			p.failed = true
		}
		return v
	default:
		left := p.operand(w)
		switch op := p.peek(); op {
		case "=", "!=", "<", "<=", ">", ">=":
			p.next()
			return compare(left, op, p.operand(p.next()))
		}
		switch {
		case left == "y" || left == "m":
			return yes
		case strings.HasPrefix(left, "$"):
			return unknown
		default:
			return no
		}
	}
}

// operand is the value of a word: a symbol's, or the constant that it is.
func (p *parser) operand(word string) string {
	if !symbolWord.MatchString(word) {
		p.failed = true
	}
	if isSymbol(word) {
		return strings.Trim(p.got.value(word), `"`)
	}
	return strings.Trim(word, `"'`)
}

func compare(left, op, right string) truth {
	if strings.HasPrefix(left, "$") || strings.HasPrefix(right, "$") {
		return unknown
	}
	order := strings.Compare(left, right)
	x, err1 := strconv.ParseInt(left, 0, 64)
	y, err2 := strconv.ParseInt(right, 0, 64)
	switch {
	case err1 == nil && err2 == nil:
		order = int(min(max(x-y, -1), 1))
	case op != "=" && op != "!=":
		// An int symbol that is not visible has no value to compare.
		return unknown
	}
	holds, ok := map[string]bool{
		"=": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0,
	}[op]
	if !ok {
		panic(fmt.Sprintf("no such comparison: %s", op))
	}
	if holds {
		return yes
	}
	return no
}
