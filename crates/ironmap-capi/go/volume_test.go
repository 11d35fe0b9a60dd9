package ironmap

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// A location without a volume is an error with the errno of the cause.
func TestOpenErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	write(t, text, []byte(strings.Repeat("no file system\n", 1000)))
	for location, want := range map[string]error{
		text + ".none": fs.ErrNotExist, text: fs.ErrInvalid, text + "\x00": fs.ErrInvalid, "qcow2:" + text: syscall.EINVAL,
	} {
		_, err := Open(location)
		var path *fs.PathError
		if !errors.Is(err, want) || !errors.As(err, &path) {
			t.Errorf("%q: %v instead of %v", location, err, want)
		}
	}
	if _, err := Open(text, Engine("steam")); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// The options reach the library.
func TestOptions(t *testing.T) {
	image := plain.image(t, "ext4")
	for _, opts := range [][]Option{
		// The first copy of the superblock is in block 8193 if a block has 1 KiB, as in a small volume.
		{Engine("psync")}, {NoLoad()}, {Threads(1, 1)}, {Threads(3, 16), Truncated()}, {Superblock(8193)},
	} {
		v, err := Open(image, opts...)
		must(t, err)
		content, err := fs.ReadFile(v.FS(), "hello")
		if string(content) != "hello\n" || err != nil {
			t.Errorf("%q, %v", content, err)
		}
		must(t, v.Close())
	}
	if _, err := Open(image, Superblock(3)); err == nil {
		t.Error("block 3 has a superblock")
	}
}

// The attributes are those that the kernel returns for the source.
func TestXattrs(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		v := odd.volume(t, format)
		source := filepath.Join(odd.root(), "file")
		if _, err := syscall.Getxattr(source, "user.comment", nil); err == syscall.EOPNOTSUPP {
			skip(t, "attributes", "the file system of "+work+" has none")
		}
		names, err := v.Xattrs("file")
		must(t, err)
		slices.Sort(names)
		if !slices.Equal(names, []string{"user.comment", "user.empty", "user.long"}) {
			t.Error(names)
		}
		for _, name := range names {
			want := make([]byte, 1000)
			size, err := syscall.Getxattr(source, name, want)
			must(t, err)
			got, err := v.Xattr("file", name)
			if string(got) != string(want[:size]) || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if _, err := v.Xattr("file", "user.none"); !errors.Is(err, syscall.ENODATA) {
			t.Error(err)
		}
		if _, err := v.Xattr("none", "user.none"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if _, err := v.Xattr("file", "user.\x00"); !errors.Is(err, fs.ErrInvalid) {
			t.Error(err)
		}
		if none, err := v.Xattrs("data"); len(none) != 0 || err != nil {
			t.Error(none, err)
		}
	})
}

// A new volume is clean. A check finds an inode that debugfs has cleared, as e2fsck does.
func TestCheck(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		report, err := plain.volume(t, format).Check()
		must(t, err)
		if !report.Clean() || report.Inodes < 300 || report.Directories < 5 || report.Blocks == 0 {
			t.Errorf("%+v", report)
		}
	})
	damaged := filepath.Join(t.TempDir(), "damaged")
	must(t, run("cp", "--sparse=always", plain.image(t, "ext4"), damaged))
	must(t, run("debugfs", "-w", "-R", "clri /hello", damaged))
	if run("e2fsck", "-fn", damaged) == nil {
		t.Fatal("e2fsck finds no fault")
	}
	v, err := Open(damaged)
	must(t, err)
	report, err := v.Check()
	must(t, err)
	sum := uint64(0)
	for _, count := range report.Counts {
		sum += count
	}
	if report.Clean() || uint64(len(report.Findings)) != sum {
		t.Errorf("%+v", report)
	}
	for _, found := range report.Findings {
		if found.Kind == "" || found.Message == "" || found.Severity > Fatal {
			t.Errorf("%+v", found)
		}
	}
	must(t, v.Close())
}

// After Close, each call on the volume, its files and its directories returns an error that matches fs.ErrClosed.
func TestAfterClose(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		v := odd.volume(t, format)
		tree := v.FS()
		one, err := tree.Open("file")
		must(t, err)
		two, err := tree.Open("file")
		must(t, err)
		_, err = two.Read(make([]byte, 1))
		must(t, err)
		folder, err := tree.Open("dir")
		must(t, err)
		entries, err := fs.ReadDir(tree, "dir")
		must(t, err)
		must(t, one.Close())

		after := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		files := func(file fs.File) {
			_, err := file.Stat()
			after("Stat", err)
			_, err = file.Read(make([]byte, 1))
			after("Read", err)
			after("Close", file.Close())
			if regular, is := file.(*File); is {
				_, err = regular.ReadAt(make([]byte, 1), 0)
				after("ReadAt", err)
				_, err = regular.Seek(0, io.SeekStart)
				after("Seek", err)
			}
		}
		files(one)
		must(t, v.Close())
		files(two)
		files(folder)
		after("Close", v.Close())
		_, err = tree.Open("file")
		after("Open", err)
		_, err = fs.Stat(tree, "file")
		after("Stat", err)
		_, err = fs.ReadDir(tree, ".")
		after("ReadDir", err)
		_, err = folder.(fs.ReadDirFile).ReadDir(-1)
		after("ReadDir", err)
		_, err = entries[0].Info()
		after("Info", err)
		_, err = v.Xattr("file", "user.comment")
		after("Xattr", err)
		_, err = v.Check()
		after("Check", err)
	})
}

// descriptors returns the number of open descriptors.
func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// Close closes the volume while goroutines read, open and close files, and leaves no descriptor. The library refuses to close a volume that
// is in use, so Close waits for the calls.
func TestCloseDuringCalls(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		image := odd.image(t, format)
		before := descriptors(t)
		for range 10 {
			v, err := Open(image)
			must(t, err)
			shared, err := v.FS().Open("data")
			must(t, err)
			var all sync.WaitGroup
			var begun sync.WaitGroup
			for i := range 16 {
				begun.Add(1)
				all.Go(func() {
					begun.Done()
					for memory := make([]byte, 4096); ; {
						file, err := v.FS().Open("data")
						if err == nil {
							_, err = shared.(*File).ReadAt(memory, 4096)
						}
						if err == nil && i%2 == 0 { // the others leave the file open
							err = file.Close()
						}
						if err != nil {
							if !errors.Is(err, fs.ErrClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
			}
			begun.Wait()
			must(t, v.Close())
			all.Wait()
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors instead of %d", after, before)
		}
	})
}

// At most callsInFlight calls are in the library at a time, so the number of threads is limited. Close does not count as one of them.
func TestCallsInFlight(t *testing.T) {
	v := plain.volume(t, "ext4")
	var all, entered sync.WaitGroup
	var now, most atomic.Int64
	gate := make(chan struct{})
	entered.Add(callsInFlight)
	for range 2 * callsInFlight {
		all.Go(func() {
			err := v.call(func() error {
				if count := now.Add(1); count <= callsInFlight {
					entered.Done()
				} else {
					most.Store(count)
				}
				<-gate
				return nil
			})
			if err != nil && err != fs.ErrClosed {
				t.Error(err)
			}
		})
	}
	entered.Wait()
	if len(v.slots) != callsInFlight {
		t.Errorf("%d calls have a place", len(v.slots))
	}
	all.Go(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	if count := most.Load(); count > callsInFlight {
		t.Errorf("%d calls are in the library", count)
	}
	close(gate)
	all.Wait()
}

// A file can be closed while other goroutines read it.
func TestCloseFileDuringReads(t *testing.T) {
	v := odd.volume(t, "ext4")
	for range 100 {
		opened, err := v.FS().Open("data")
		must(t, err)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for memory := make([]byte, 4096); ; {
					if _, err := opened.(*File).ReadAt(memory, 0); err != nil {
						if !errors.Is(err, fs.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		must(t, opened.Close())
		all.Wait()
	}
}

// forget opens a volume and files, forgets them, and returns the exit code of the process.
func forget(location string) int {
	for range 3 {
		v, err := Open(location)
		if err != nil {
			return 2
		}
		for range 10 {
			file, err := v.FS().Open("hello")
			if err != nil {
				return 3
			}
			if _, err := file.Read(make([]byte, 10)); err != nil {
				return 4
			}
		}
	}
	runtime.GC()
	runtime.GC()
	return 0
}

// A program that forgets to close a volume ends without a crash.
func TestForgottenClose(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), "IRONMAP_GO_FORGET="+plain.image(t, format))
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}
