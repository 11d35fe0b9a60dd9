package ironmap

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program in docs/INTEGRATIONS.md runs, and prints the first line of a file of an image.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/INTEGRATIONS.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(page), "\n```go\n")
	program, _, found := strings.Cut(rest, "\n```\n")
	if !found {
		t.Fatal("the page has no program")
	}
	here, err := filepath.Abs(".")
	must(t, err)
	root, folder := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "etc/os-release"), []byte("NAME=box\n"))
	if reason := build(t, "ext4", root, filepath.Join(folder, "disk.img")); reason != "" {
		skip(t, "page", reason)
	}
	write(t, filepath.Join(folder, "main.go"), []byte(program))
	write(t, filepath.Join(folder, "go.mod"), []byte("module page\ngo 1.25\n"))
	inFolder := func(args ...string) string {
		command := exec.Command("go", args...)
		command.Dir = folder
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	inFolder("mod", "edit", "-require=ironmap@v0.0.0", "-replace=ironmap="+here)
	if out := inFolder("run", "."); !strings.Contains(out, "NAME=box\n") {
		t.Errorf("%q", out)
	}
}
