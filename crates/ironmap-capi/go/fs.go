package ironmap

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"syscall"
)

// maxReadFile is the size of the largest file that ReadFile reads, in bytes. An image can contain a sparse file of any size.
const maxReadFile = 1 << 30

// A volumeFS is the tree of a volume.
type volumeFS struct{ volume *Volume }

var (
	_ fs.StatFS     = volumeFS{}
	_ fs.ReadDirFS  = volumeFS{}
	_ fs.ReadFileFS = volumeFS{}
	_ fs.ReadLinkFS = volumeFS{}
)

// FS returns the tree of the volume. It implements fs.StatFS, fs.ReadDirFS, fs.ReadFileFS and fs.ReadLinkFS. All errors are *fs.PathError,
// whose Err is an *Error, or an error of package fs.
//
// Symbolic links are followed within the volume: an absolute target begins at the root of the volume. Open opens regular files, as *File, and
// directories. ReadFile refuses a file of more than 1 GiB with EFBIG. A name that is not UTF-8 appears in its directory, but package fs does
// not permit opening it.
func (v *Volume) FS() fs.FS { return volumeFS{v} }

func (f volumeFS) Open(name string) (fs.File, error) {
	var opened fs.File
	err := f.volume.at("open", name, func(absolute string) error {
		info, err := stat(f.volume.handle, absolute, true)
		if err != nil {
			return err
		}
		info.name = path.Base(name)
		if info.IsDir() {
			opened = &dir{volume: f.volume, name: name, info: info}
			return nil
		}
		opened, err = f.volume.openRegular(name, info)
		return err
	})
	return opened, err
}

func (f volumeFS) ReadFile(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	regular, is := file.(*File)
	if !is {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
	}
	if regular.info.size > maxReadFile {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EFBIG}
	}
	content := make([]byte, regular.info.size)
	_, err = regular.ReadAt(content, 0)
	return content, err
}

func (f volumeFS) Stat(name string) (fs.FileInfo, error) { return f.stat("stat", name, true) }

func (f volumeFS) Lstat(name string) (fs.FileInfo, error) { return f.stat("lstat", name, false) }

func (f volumeFS) stat(op, name string, follow bool) (fs.FileInfo, error) {
	var info *fileInfo
	err := f.volume.at(op, name, func(path string) (err error) {
		info, err = stat(f.volume.handle, path, follow)
		return err
	})
	if err != nil {
		return nil, err
	}
	info.name = path.Base(name)
	return info, nil
}

func (f volumeFS) ReadLink(name string) (string, error) {
	var target string
	err := f.volume.at("readlink", name, func(path string) (err error) {
		target, err = readLink(f.volume.handle, path)
		return err
	})
	return target, err
}

func (f volumeFS) ReadDir(name string) ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	err := f.volume.at("readdir", name, func(absolute string) error {
		list, err := readDirectory(f.volume.handle, absolute)
		if err != nil {
			return err
		}
		for _, found := range list {
			entry := &dirEntry{f.volume, absolute, found.name, fileMode(found.mode).Type()}
			if found.mode == 0 { // the directory does not store the types
				info, err := stat(f.volume.handle, path.Join(absolute, found.name), false)
				if err != nil {
					return err
				}
				entry.kind = info.mode.Type()
			}
			entries = append(entries, entry)
		}
		return nil
	})
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, err
}
