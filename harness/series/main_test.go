// SPDX-License-Identifier: MIT

package series

import (
	"os"
	"testing"

	"patchbay/harness/internal/keeper"
)

// TestMain makes the test binary usable as a keeper.
func TestMain(m *testing.M) {
	keeper.Main()
	os.Exit(m.Run())
}
