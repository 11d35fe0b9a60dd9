package ironmap

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// formats are the formats that the tests read.
var formats = []string{"ext4", "xfs"}

// work is the directory of the images, which all tests share.
var work string

func TestMain(m *testing.M) {
	if location := os.Getenv("IRONMAP_GO_FORGET"); location != "" {
		os.Exit(forget(location))
	}
	var err error
	if work, err = os.MkdirTemp("", "ironmap-go"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(work)
	os.Exit(code)
}

// skip skips a test, and reports it to test.sh.
func skip(t testing.TB, name, reason string) {
	line := fmt.Sprintf("Go package, %s: %s", name, reason)
	if path := os.Getenv("IRONMAP_GO_SKIPS"); path != "" {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		_, err = fmt.Fprintln(file, line)
		must(t, err)
		must(t, file.Close())
	}
	t.Skip("SKIP " + line)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// random returns random numbers, and prints their seed, which IRONMAP_SEED sets.
func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if text := os.Getenv("IRONMAP_SEED"); text != "" {
		parsed, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		seed = parsed
	}
	t.Logf("IRONMAP_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// A tree is a directory from which images are made.
type tree struct {
	once sync.Once
	make func(t testing.TB, root string)
	// images are the paths of the images by format; skips are the reasons why there is none.
	images, skips map[string]string
}

var (
	plain = &tree{make: makePlain}
	odd   = &tree{make: makeOdd}
	trees = map[*tree]string{plain: "plain", odd: "odd"}
)

func (tr *tree) root() string { return filepath.Join(work, trees[tr]) }

// image returns the path of an image of this format. The images are made once.
func (tr *tree) image(t testing.TB, format string) string {
	tr.once.Do(func() {
		must(t, os.Mkdir(tr.root(), 0o755))
		tr.make(t, tr.root())
		tr.images, tr.skips = map[string]string{}, map[string]string{}
		for _, format := range formats {
			image := tr.root() + "." + format
			tr.images[format], tr.skips[format] = image, build(t, format, tr.root(), image)
		}
	})
	if reason := tr.skips[format]; reason != "" {
		skip(t, "tests on "+format, reason)
	}
	return tr.images[format]
}

// build makes an image, or returns the reason why it cannot be made here.
func build(t testing.TB, format, root, image string) string {
	if format == "ext4" {
		if _, err := exec.LookPath("mke2fs"); err != nil {
			return "needs mke2fs"
		}
		must(t, run("mke2fs", "-q", "-t", "ext4", "-b", "1024", "-d", root, image, "64M"))
		return ""
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil || os.Getuid() != 0 {
		return "needs root and mkfs.xfs"
	}
	must(t, os.WriteFile(image, nil, 0o644))
	must(t, os.Truncate(image, 320<<20))
	must(t, run("mkfs.xfs", "-q", image))
	mounted := image + ".mounted"
	must(t, os.Mkdir(mounted, 0o755))
	if err := run("mount", "-o", "loop", image, mounted); err != nil {
		return strings.ReplaceAll(fmt.Sprintf("cannot be mounted: %v", err), "\n", " ")
	}
	copied := run("cp", "-a", root+"/.", mounted)
	must(t, run("umount", mounted))
	must(t, copied)
	return ""
}

// volume opens an image of a tree, and closes it after the test.
func (tr *tree) volume(t testing.TB, format string, opts ...Option) *Volume {
	v, err := Open(tr.image(t, format), opts...)
	must(t, err)
	t.Cleanup(func() {
		if err := v.Close(); err != nil && err != fs.ErrClosed {
			t.Error(err)
		}
	})
	return v
}

// onEach runs a test for each format.
func onEach(t *testing.T, test func(t *testing.T, format string)) {
	for _, format := range formats {
		t.Run(format, func(t *testing.T) { test(t, format) })
	}
}

func write(t testing.TB, path string, content []byte) {
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, content, 0o644))
}

func bytesOf(r *rand.Rand, size int) []byte {
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	return content
}

// sparse writes a file with ranges of random data, and holes between them.
func sparse(t testing.TB, r *rand.Rand, path string, size int64, ranges, most int) {
	file, err := os.Create(path)
	must(t, err)
	for range ranges {
		_, err := file.WriteAt(bytesOf(r, r.IntN(most)), r.Int64N(size-int64(most)))
		must(t, err)
	}
	must(t, file.Truncate(size))
	must(t, file.Close())
}

// makePlain makes a tree that fstest.TestFS accepts: it opens each name, so all symbolic links have a target.
func makePlain(t testing.TB, root string) {
	r := rand.New(rand.NewPCG(1, 0))
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("hello"), []byte("hello\n"))
	write(t, at("empty"), nil)
	write(t, at("one block"), bytesOf(r, 4096))
	write(t, at("large"), bytesOf(r, 12_345))
	write(t, at("dir/sub/deep/file"), []byte("deep"))
	write(t, at("dir/日本語-ümläut"), []byte("unicode"))
	write(t, at("dir/"+strings.Repeat("n", 255)), []byte("long"))
	for i := range 300 {
		write(t, at(fmt.Sprintf("many/%03d", i)), nil)
	}
	sparse(t, r, at("sparse"), 20_000, 3, 2000)
	must(t, os.Mkdir(at("nothing"), 0o700))
	must(t, os.Chmod(at("nothing"), 0o1777|os.ModeSticky))
	must(t, os.Chmod(at("hello"), 0o755|os.ModeSetuid))
	for name, target := range map[string]string{
		"relative": "hello", "absolute": "/dir/sub/deep/file", "dir/up": "../hello", "to dir": "dir/sub", "chain": "relative",
		"out of the root": "../../../../hello", "long target": strings.Repeat("./", 60) + "hello",
	} {
		must(t, os.Symlink(target, at(name)))
	}
}

// makeOdd makes a tree of files that TestFS does not accept, or that are too large for it.
func makeOdd(t testing.TB, root string) {
	r := rand.New(rand.NewPCG(2, 0))
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("file"), []byte("content"))
	write(t, at("data"), bytesOf(r, 5<<20+123))
	sparse(t, r, at("holes"), 200<<20, 40, 100_000)
	sparse(t, r, at("fragments"), 3<<20, 200, 6000)
	write(t, at("dir/\xff\xfe"), []byte("not UTF-8"))
	must(t, syscall.Mkfifo(at("fifo"), 0o644))
	must(t, os.Truncate(at("file"), 7))
	must(t, os.WriteFile(at("huge"), nil, 0o644))
	must(t, os.Truncate(at("huge"), 2<<30))
	for name, target := range map[string]string{"dangling": "nowhere", "loop": "pool", "pool": "loop"} {
		must(t, os.Symlink(target, at(name)))
	}
	for name, value := range map[string]string{"user.comment": "text", "user.empty": "", "user.long": strings.Repeat("v", 900)} {
		if err := syscall.Setxattr(at("file"), name, []byte(value), 0); err != syscall.EOPNOTSUPP {
			must(t, err)
		}
	}
}
