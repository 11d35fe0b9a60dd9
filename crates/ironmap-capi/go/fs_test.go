package ironmap

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/fstest"
)

// The file system keeps the rules of package fs, which TestFS checks.
func TestRulesOfFS(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		v := plain.volume(t, format)
		var expected []string
		must(t, fs.WalkDir(os.DirFS(plain.root()), ".", func(path string, _ fs.DirEntry, err error) error {
			if path != "." {
				expected = append(expected, path)
			}
			return err
		}))
		must(t, fstest.TestFS(v.FS(), expected...))
	})
}

// The names, attributes, contents and targets are those of the files from which the image was made. The kernel reads these files.
func TestTreeOfSource(t *testing.T) {
	for tr := range trees {
		onEach(t, func(t *testing.T, format string) {
			tree := tr.volume(t, format).FS()
			count := 0
			must(t, fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
				if path == "lost+found" && err == nil {
					return fs.SkipDir
				}
				count++
				if err == nil && path != "." {
					sameFile(t, tree, path, entry, filepath.Join(tr.root(), path))
				}
				return err
			}))
			must(t, filepath.WalkDir(tr.root(), func(_ string, _ fs.DirEntry, err error) error {
				count--
				return err
			}))
			if count != 0 {
				t.Errorf("the volume has %d files more than its source", count)
			}
		})
	}
}

// sameFile compares a file of a volume with its source.
func sameFile(t *testing.T, tree fs.FS, path string, entry fs.DirEntry, source string) {
	t.Helper()
	want, err := os.Lstat(source)
	must(t, err)
	got, err := entry.Info()
	must(t, err)
	if got.Name() != want.Name() || got.Mode() != want.Mode() || got.ModTime().Unix() != want.ModTime().Unix() {
		t.Errorf("%v instead of %v", got, fs.FormatFileInfo(want))
	}
	sys, kernel := got.Sys().(*Stat), want.Sys().(*syscall.Stat_t)
	// Each file system has its own size and number of names for a directory.
	if !want.IsDir() && (got.Size() != want.Size() || uint64(sys.Links) != kernel.Nlink) {
		t.Errorf("%s: size %d and %d names instead of %d and %d", path, got.Size(), sys.Links, want.Size(), kernel.Nlink)
	}
	if sys.UID != kernel.Uid || sys.GID != kernel.Gid {
		t.Errorf("%s: %+v instead of %+v", path, sys, kernel)
	}
	switch {
	case want.Mode()&fs.ModeSymlink != 0:
		target, err := fs.ReadLink(tree, path)
		must(t, err)
		if real, _ := os.Readlink(source); target != real {
			t.Errorf("%s: the target is %q instead of %q", path, target, real)
		}
	case want.Mode().IsRegular() && want.Size() < 100<<20 && fs.ValidPath(path):
		content, err := fs.ReadFile(tree, path)
		must(t, err)
		if real, _ := os.ReadFile(source); !bytes.Equal(content, real) {
			t.Errorf("%s: the content differs", path)
		}
	}
}

// An error is a *fs.PathError that matches the errors of package fs and the errno that the kernel returns for the same call.
func TestErrors(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		tree := odd.volume(t, format).FS()
		open := func(name string) error { _, err := tree.Open(name); return err }
		read := func(name string) error { _, err := fs.ReadFile(tree, name); return err }
		for _, test := range []struct {
			call func(string) error
			name string
			want error
		}{
			{open, "nothing", fs.ErrNotExist}, {open, "nothing", syscall.ENOENT}, {open, "dangling", syscall.ENOENT},
			{open, "file/below", syscall.ENOTDIR}, {open, "loop", syscall.ELOOP}, {open, "fifo", syscall.EINVAL},
			{open, string(bytes.Repeat([]byte("n"), 256)), syscall.ENAMETOOLONG},
			{open, "", fs.ErrInvalid}, {open, "/file", fs.ErrInvalid}, {open, "dir/../file", fs.ErrInvalid},
			{open, "file\x00", fs.ErrInvalid}, {open, "dir/\xff\xfe", fs.ErrInvalid},
			{read, "dir", syscall.EISDIR}, {read, "huge", syscall.EFBIG}, {read, "nothing", fs.ErrNotExist},
			{func(name string) error { _, err := fs.ReadLink(tree, name); return err }, "file", fs.ErrInvalid},
			{func(name string) error { _, err := fs.ReadDir(tree, name); return err }, "file", syscall.ENOTDIR},
			{func(name string) error { _, err := fs.Stat(tree, name); return err }, "dangling", fs.ErrNotExist},
		} {
			err := test.call(test.name)
			var path *fs.PathError
			if !errors.Is(err, test.want) || !errors.As(err, &path) || path.Path != test.name {
				t.Errorf("%q: %v instead of %v", test.name, err, test.want)
			}
		}
		var failed *Error
		err := open("file/below")
		if !errors.As(err, &failed) || failed.Kind != "NotADirectory" || failed.Message == "" {
			t.Errorf("%v: %+v", err, failed)
		}
		if _, err := fs.Lstat(tree, "dangling"); err != nil {
			t.Error(err)
		}
	})
}

// An open directory returns its entries in parts, and is not a regular file.
func TestDirectory(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		file, err := plain.volume(t, format).FS().Open("many")
		must(t, err)
		if _, err := file.Read(make([]byte, 1)); !errors.Is(err, syscall.EISDIR) {
			t.Errorf("Read of a directory: %v", err)
		}
		var names []string
		for {
			entries, err := file.(fs.ReadDirFile).ReadDir(7)
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			if err == io.EOF {
				break
			}
			must(t, err)
		}
		if len(names) != 300 || !slices.IsSorted(names) {
			t.Errorf("%d names: %v", len(names), names)
		}
		must(t, file.Close())
		if _, err := file.(fs.ReadDirFile).ReadDir(0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("ReadDir of a closed directory: %v", err)
		}
	})
}
