// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"patchbay/harness/internal/keeper"
)

// TestMain makes the test binary the command for the scripts, and usable as a
// keeper.
func TestMain(m *testing.M) {
	keeper.Main()
	testscript.Main(m, map[string]func(){
		"patchbay": main,
	})
}

// TestScripts runs the real command line on bad input and on what needs no
// kernel. Each script's folder is a checkout of its own, with an empty cache.
func TestScripts(t *testing.T) {
	root := checkout(t)
	caches := map[string]string{"GOCACHE": goEnv(t, "GOCACHE"), "GOMODCACHE": goEnv(t, "GOMODCACHE")}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATCHBAY_CACHE", filepath.Join(env.WorkDir, "cache"))
			env.Setenv("HOME", env.WorkDir)
			for name, dir := range caches {
				env.Setenv(name, dir)
			}
			if _, err := os.Stat(filepath.Join(env.WorkDir, "nowhere")); err == nil {
				return nil
			}
			for _, name := range []string{"kernel", "vmconfigs", "tests", "harness", "go.mod", "go.sum"} {
				if err := os.Symlink(filepath.Join(root, name), filepath.Join(env.WorkDir, name)); err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

// goEnv asks go where its caches are, so that scripts with a home of their own
// do not compile the world again.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out[:len(out)-1])
}

// exits runs a command and demands its exit code: exits CODE COMMAND ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}
