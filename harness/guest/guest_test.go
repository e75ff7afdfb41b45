// SPDX-License-Identifier: MIT

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"

	"patchbay/harness/agent/agenttest"
	"patchbay/harness/internal/fault"
	"patchbay/harness/internal/keeper"
	"patchbay/harness/wire"
)

// asVNG, in the environment, makes the test binary a stand-in for vng and QEMU:
// it connects to the agent's socket, found in the arguments as QEMU finds it,
// and serves a fake agent.
const asVNG = "PATCHBAY_TEST_VNG"

func TestMain(m *testing.M) {
	keeper.Main()
	if how := os.Getenv(asVNG); how != "" {
		os.Exit(playVNG(how, os.Args[1:]))
	}
	os.Exit(m.Run())
}

func playVNG(how string, args []string) int {
	if how == "exits" {
		fmt.Fprintln(os.Stderr, "vng: no such kernel")
		return 255
	}
	for _, word := range strings.Fields(strings.Join(args, " ")) {
		if !strings.HasPrefix(word, "socket,id=patchbay-agent") {
			continue
		}
		_, path, _ := strings.Cut(word, "path=")
		path, _, _ = strings.Cut(path, ",")
		conn, err := net.Dial("unix", path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		_ = (&agenttest.Fake{}).Serve(conn, func() {})
	}
	return 0
}

// withVNG puts the stand-in on PATH.
func withVNG(t *testing.T, how string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(bin, "vng")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv(asVNG, how)
}

func spec(t *testing.T) Spec {
	dir := filepath.Join(t.TempDir(), "a földer with spaces")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return Spec{
		Kernel: filepath.Join(dir, "bzImage"), Initrd: filepath.Join(dir, "initrd"),
		CPUs: 2, Memory: 512 << 20, Accel: TCG,
		Console: filepath.Join(dir, "console.log"), Serial: filepath.Join(dir, "serial.log"),
	}
}

func TestGuestComesAndGoes(t *testing.T) {
	withVNG(t, "serves")
	g, err := Start(t.Context(), spec(t))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := g.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := wire.NewDecoder[wire.FromGuest](conn).Decode()
	if err != nil || f.Hello == nil {
		t.Fatalf("got %+v, %v, want a hello", f, err)
	}
	for _, word := range g.VNG {
		if strings.Contains(word, "földer") {
			t.Errorf("vng is handed a path that it may not quote: %s", word)
		}
	}
	dir := g.dir
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the run folder is not where it should be: %v", err)
	}
	g.Stop()
	select {
	case <-g.Gone():
	default:
		t.Error("stopped, yet not gone")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run folder was left behind: %v", err)
	}
}

func TestGuestThatEndsEarly(t *testing.T) {
	withVNG(t, "exits")
	s := spec(t)
	g, err := Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := g.Accept(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want net.ErrClosed at once", err)
	}
	<-g.Gone()
	said, _ := os.ReadFile(s.Serial)
	if !strings.Contains(string(said), "no such kernel") {
		t.Errorf("what vng said was lost: %q", said)
	}
}

func TestCancelledGuest(t *testing.T) {
	withVNG(t, "serves")
	ctx, cancel := context.WithCancel(t.Context())
	g, err := Start(ctx, spec(t))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	cancel()
	select {
	case <-g.Gone():
	case <-time.After(20 * time.Second):
		t.Fatal("a cancelled guest lives on")
	}
}

func TestStartRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*testing.T, *Spec)
		blame  fault.Blame
		want   string
	}{
		"no vng":               {func(t *testing.T, _ *Spec) { t.Setenv("PATH", t.TempDir()) }, fault.Harness, "bin/setup"},
		"long command line":    {func(_ *testing.T, s *Spec) { s.Append = []string{strings.Repeat("x", 2000)} }, fault.Configuration, "append:"},
		"console not writable": {func(_ *testing.T, s *Spec) { s.Console = "/proc/no/such/folder" }, fault.Harness, "console"},
	} {
		t.Run(name, func(t *testing.T) {
			run := t.TempDir()
			t.Setenv("XDG_RUNTIME_DIR", "")
			t.Setenv("TMPDIR", run)
			s := spec(t)
			tc.change(t, &s)
			_, err := Start(t.Context(), s)
			var e *fault.Error
			if !errors.As(err, &e) || e.Blame != tc.blame || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s blamed on %v", err, tc.want, tc.blame)
			}
			if left, _ := filepath.Glob(filepath.Join(run, "patchbay-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestCommand(t *testing.T) {
	s := Spec{CPUs: 4, Memory: 1 << 30, Accel: TCG}
	got := strings.Join(command("/tmp/x", s, []string{"rdinit=/init"}), "\n")
	want := `vng
--run
/tmp/x/kernel
--force-9p
--root
/tmp/x/root
--cpus
4
--memory
1024M
--verbose
--disable-kvm
--append
rdinit=/init
--qemu-opts=-initrd /tmp/x/initrd -device virtio-serial-pci,id=patchbay,max_ports=4 -chardev file,id=patchbay-console,path=/tmp/x/console -device virtconsole,bus=patchbay.0,chardev=patchbay-console -chardev socket,id=patchbay-agent,path=/tmp/x/agent -device virtserialport,bus=patchbay.0,chardev=patchbay-agent,name=patchbay.agent -accel tcg,thread=multi
--
true`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.Accel = KVM
	if got := strings.Join(command("/tmp/x", s, nil), " "); strings.Contains(got, "tcg") || strings.Contains(got, "disable-kvm") {
		t.Errorf("KVM is not used: %s", got)
	}
}

func TestInitrd(t *testing.T) {
	dir := t.TempDir()
	at := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	target := filepath.Join(dir, "initrd")
	err := WriteInitrd(target, at("agent", "the agent"), []File{
		{Path: "/tests/a", Source: at("one", "first")},
		{Path: "tests/deep/er/b", Source: at("two", "second")},
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := cpio.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		got = append(got, fmt.Sprintf("%s %v %s", h.Name, h.Mode.Perm()&0o111 != 0, content))
	}
	want := []string{"init true the agent", "tests true ", "tests/a true first", "tests/deep true ", "tests/deep/er true ", "tests/deep/er/b true second"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	if err := WriteInitrd(target, filepath.Join(dir, "missing"), nil); err == nil {
		t.Error("an initramfs without an agent was written")
	}
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Error("half an initramfs was left behind")
	}
}
