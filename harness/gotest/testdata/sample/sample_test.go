// SPDX-License-Identifier: MIT

// Package sample is run by gotest's own tests; it fails on purpose.
package sample

import (
	"fmt"
	"os"
	"testing"
)

func TestGood(t *testing.T) {
	t.Log("first\nsecond")
	t.Run("with space", func(t *testing.T) { fmt.Print("no newline at the end") })
	t.Run("a.b(c)", func(t *testing.T) {})
	t.Run("deep", func(t *testing.T) { t.Run("deeper", func(t *testing.T) { t.Log("down here") }) })
}

func TestBad(t *testing.T) {
	t.Run("fails", func(t *testing.T) { t.Error("on purpose") })
	t.Run("skips", func(t *testing.T) { t.Skip("for a reason") })
	t.Run("shouts", func(*testing.T) { fmt.Println("--- PASS: TestFake (0.00s)") })
}

func TestParallel(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) { t.Parallel(); t.Log(name) })
	}
}

func TestPanics(t *testing.T) {
	if os.Getenv("PANIC") != "" {
		panic("as asked")
	}
}
