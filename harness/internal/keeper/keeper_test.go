// SPDX-License-Identifier: MIT

package keeper

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asker and folder, in the environment, make the test binary a program that
// waits to be killed: asker's uses a kept command, folder's has a folder.
const (
	asker  = "PATCHBAY_TEST_ASKER"
	folder = "PATCHBAY_TEST_FOLDER"
)

func TestMain(m *testing.M) {
	Main()
	if dir := os.Getenv(asker); dir != "" {
		c := Command(context.Background(), "sh", "-c", tree)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.Remove = []string{dir}
		if err := c.Run(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(folder) != "" {
		dir, _, err := TempDir("keeper-")
		if err != nil {
			os.Exit(1)
		}
		fmt.Println(dir)
		select {}
	}
	os.Exit(m.Run())
}

// tree starts processes that leave their parent, their group and their session
// and ignore what can be ignored, and prints their numbers.
const tree = `
trap '' TERM HUP INT
sleep 600 & echo $!
setsid sh -c 'trap "" TERM HUP; sleep 600 & echo $!; echo $$; wait' &
(setsid sleep 600 & echo $!)
sh -c 'sleep 600 & echo $!' # the parent ends at once
sleep 0.1
echo all
wait
`

// pids reads process numbers up to the line "all".
func pids(t *testing.T, lines *bufio.Scanner) []int {
	t.Helper()
	var found []int
	for lines.Scan() {
		if lines.Text() == "all" {
			return found
		}
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("not a process number: %q", lines.Text())
		}
		found = append(found, pid)
	}
	t.Fatal("the command ended too early")
	return nil
}

// gone waits until none of the processes is left. Zombies count as gone: who
// reaps them is not the keeper's business once it has ended.
func gone(t *testing.T, processes []int) {
	t.Helper()
	if len(processes) != 5 {
		t.Fatalf("%d processes were started, want 5", len(processes))
	}
	alive := func(pid int) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && !strings.Contains(string(stat), ") Z ")
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range processes {
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Errorf("process %d is still there", pid)
				_ = unix.Kill(pid, unix.SIGKILL)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestCancelKillsEverything(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := Command(ctx, "sh", "-c", tree)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	started := pids(t, bufio.NewScanner(out))
	cancel()
	if err := c.Wait(); err == nil {
		t.Error("a cancelled command ended well")
	}
	gone(t, started)
}

func TestEndKillsWhatIsLeft(t *testing.T) {
	c := Command(context.Background(), "sh", "-c", strings.TrimSuffix(tree, "wait\n")+"exit 7")
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	var exit *exec.ExitError
	if e, ok := err.(*exec.ExitError); ok {
		exit = e
	}
	if exit == nil || exit.ExitCode() != 7 {
		t.Errorf("got %v, want exit status 7", err)
	}
	gone(t, pids(t, bufio.NewScanner(&out)))
}

// TestKillDashNine kills the program that asked, without a warning.
func TestKillDashNine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run folder")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asker+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := pids(t, bufio.NewScanner(out))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone(t, started)
	deleted(t, dir)
}

// deleted waits until the folder is.
func deleted(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was left behind", dir)
		}
	}
}

func TestTempDir(t *testing.T) {
	dir, remove, err := TempDir("keeper-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	remove()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}

	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if dir, _, err := TempDir("keeper-"); err == nil {
		t.Errorf("%s was made in a folder that does not exist", dir)
	}
}

func TestTempDirKillDashNine(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), folder+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("no folder was made")
	}
	dir := lines.Text()
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	deleted(t, dir)
}

func TestSignalsAreTheAskersBusiness(t *testing.T) {
	c := Command(context.Background(), "sh", "-c", "echo ready; read line; exit 3")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	bufio.NewScanner(out).Scan()
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		if err := unix.Kill(c.Process.Pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	in.Close()
	if err := c.Wait(); err == nil || err.(*exec.ExitError).ExitCode() != 3 {
		t.Errorf("got %v, want exit status 3", err)
	}
}

func TestDefaultSignalsInside(t *testing.T) {
	// A shell that inherits an ignored SIGTERM would survive its own kill.
	err := Command(context.Background(), "sh", "-c", "kill -TERM $$; exit 0").Run()
	if err == nil || err.(*exec.ExitError).ExitCode() != 128+15 {
		t.Errorf("got %v, want exit status 143", err)
	}
}

func TestNoSuchCommand(t *testing.T) {
	if err := Command(context.Background(), "patchbay-no-such-command").Run(); err == nil {
		t.Error("a command that does not exist was run")
	}
}
