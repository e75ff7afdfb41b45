// SPDX-License-Identifier: MIT

package tree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"

	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/names"
)

// Bases are the known kernels, in the order of their file.
type Bases []Base

// Base is a known kernel: a name and the ways to its sources, in the order in
// which they are tried.
type Base struct {
	// Name is what people call it: "v6.12".
	Name string `yaml:"name" json:"name"`
	// Ways are tried in order until one works.
	Ways []Way `yaml:"ways" json:"ways"`
}

// Way is one way to a base's sources. Exactly one of Package and Tarball is set.
type Way struct {
	// Package is a Debian package that holds the sources as
	// /usr/src/PACKAGE.tar.xz.
	Package string `yaml:"package,omitempty" json:"package,omitempty"`
	// Suites are where to look for the package if the suites that apt is
	// configured for do not have it.
	Suites []string `yaml:"suites,omitempty" json:"suites,omitempty"`
	// Tarball is a file on the web.
	Tarball *Download `yaml:"tarball,omitempty" json:"tarball,omitempty"`
}

// Download is a file on the web together with what it must be.
type Download struct {
	// URL is an https address.
	URL string `yaml:"url" json:"url"`
	// SHA256 is the file's hexadecimal checksum. Where it is empty none is
	// recorded, and the file is not fetched.
	SHA256 string `yaml:"sha256" json:"sha256"`
}

// String says which way it is: "package linux-source-6.12".
func (w Way) String() string {
	if w.Tarball != nil {
		return "tarball " + w.Tarball.URL
	}
	return "package " + w.Package
}

var (
	goodBase    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	goodPackage = regexp.MustCompile(`^linux-source-[a-z0-9.+-]+$`)
	goodSuite   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	goodSHA256  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// LoadBases reads kernel/bases.yaml. Unknown keys and impossible values are
// configuration errors.
func LoadBases(path string) (Bases, error) {
	wrong := func(err error) error {
		return &fault.Error{
			Blame: fault.Configuration, Doing: "reading the known kernels", Subject: path, Err: err,
			Next: "correct the file; Base in harness/tree says what may stand in it",
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, wrong(err)
	}
	var file struct {
		Bases Bases `yaml:"bases"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&file); err != nil {
		return nil, wrong(errors.New(yaml.FormatError(err, false, true)))
	}
	seen := map[string]bool{}
	for i, b := range file.Bases {
		if err := b.check(); err != nil {
			return nil, wrong(fmt.Errorf("line %d: %w", lineOf(data, fmt.Sprintf("$.bases[%d]", i)), err))
		}
		if seen[b.Name] {
			return nil, wrong(fmt.Errorf("line %d: base %s is there twice", lineOf(data, fmt.Sprintf("$.bases[%d]", i)), b.Name))
		}
		seen[b.Name] = true
	}
	if len(file.Bases) == 0 {
		return nil, wrong(errors.New("it lists no base"))
	}
	return file.Bases, nil
}

// lineOf returns the line on which the value at a YAML path begins, or 0.
func lineOf(data []byte, path string) int {
	p, err := yaml.PathString(path)
	if err != nil {
		return 0
	}
	node, err := p.ReadNode(bytes.NewReader(data))
	if err != nil || node.GetToken() == nil {
		return 0
	}
	return node.GetToken().Position.Line
}

func (b Base) check() error {
	switch {
	case b.Name == "":
		return errors.New("a base needs a name")
	case !goodBase.MatchString(b.Name):
		return fmt.Errorf("%q cannot be a base's name: letters, digits, dots and dashes only", b.Name)
	case len(b.Ways) == 0:
		return fmt.Errorf("base %s has no ways to its sources", b.Name)
	}
	for _, w := range b.Ways {
		switch {
		case (w.Package == "") == (w.Tarball == nil):
			return fmt.Errorf("base %s: a way is either a package or a tarball", b.Name)
		case w.Package != "" && !goodPackage.MatchString(w.Package):
			return fmt.Errorf("base %s: %q is no linux-source package", b.Name, w.Package)
		case w.Tarball != nil && len(w.Suites) > 0:
			return fmt.Errorf("base %s: suites belong to a package, not to a tarball", b.Name)
		case w.Tarball != nil && !strings.HasPrefix(w.Tarball.URL, "https://"):
			return fmt.Errorf("base %s: %q is no https address", b.Name, w.Tarball.URL)
		case w.Tarball != nil && w.Tarball.SHA256 != "" && !goodSHA256.MatchString(w.Tarball.SHA256):
			return fmt.Errorf("base %s: sha256 %q is not 64 hexadecimal digits in lower case", b.Name, w.Tarball.SHA256)
		}
		for _, s := range w.Suites {
			if !goodSuite.MatchString(s) {
				return fmt.Errorf("base %s: %q is no suite's name", b.Name, s)
			}
		}
	}
	return nil
}

// Names lists the bases' names in the order of the file.
func (bs Bases) Names() []string {
	all := make([]string, len(bs))
	for i, b := range bs {
		all[i] = b.Name
	}
	return all
}

// Find returns the base of that name; if there is none the error names the
// nearest.
func (bs Bases) Find(name string) (*Base, error) {
	for i := range bs {
		if bs[i].Name == name {
			return &bs[i], nil
		}
	}
	return nil, names.Unknown("base", name, bs.Names())
}
