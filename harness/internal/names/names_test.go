// SPDX-License-Identifier: MIT

package names

import (
	"strings"
	"testing"

	"patchbay/harness/internal/fault"
)

func TestUnknown(t *testing.T) {
	many := strings.Split("abcdefghijklmnop", "")
	for _, tc := range []struct {
		name  string
		known []string
		want  string
	}{
		{"v6.21", []string{"v6.12", "v7.3"}, "did you mean v6.12?"},
		{"defualt", []string{"default", "kasan"}, "did you mean default?"},
		{"nonsense", []string{"default", "kasan"}, "known: default, kasan"},
		{"nonsense", nil, "none is known here"},
		{"nonsense", many, "patchbay list"},
	} {
		err := Unknown("thing", tc.name, tc.known)
		if !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q among %v: %q lacks %q", tc.name, tc.known, err, tc.want)
		}
		if code := fault.ExitCode(err); code != fault.ExitConfiguration {
			t.Errorf("exit code %d", code)
		}
	}
}
