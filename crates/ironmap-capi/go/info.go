package ironmap

import (
	"io/fs"
	"path"
	"syscall"
	"time"
)

// A Stat has the attributes of a file that fs.FileInfo does not have. FileInfo.Sys returns a *Stat.
type Stat struct {
	// Inode is the number of the inode.
	Inode uint64
	// Links is the number of names.
	Links uint32
	// UID and GID are the user and the group that own the file.
	UID, GID uint32
	// Blocks is the allocated space in units of 512 bytes.
	Blocks uint64
	// Flags are the flags of the inode, as FS_IOC_GETFLAGS returns them.
	Flags uint32
	// DeviceMajor and DeviceMinor are the number of a device; 0 for other files.
	DeviceMajor, DeviceMinor uint32
	// Accessed, Modified and Changed are the times of the last read, of the last change of the content, and of the last change of the
	// attributes.
	Accessed, Modified, Changed time.Time
	// Created is the time of creation, or the zero time if the format does not store it.
	Created time.Time
}

type fileInfo struct {
	name string
	mode fs.FileMode
	size int64
	stat Stat
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.size }
func (i *fileInfo) Mode() fs.FileMode  { return i.mode }
func (i *fileInfo) ModTime() time.Time { return i.stat.Modified }
func (i *fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i *fileInfo) Sys() any           { return &i.stat }
func (i *fileInfo) String() string     { return fs.FormatFileInfo(i) }

// types are the types of files, by their bits in st_mode.
var types = map[uint32]fs.FileMode{
	syscall.S_IFREG:  0,
	syscall.S_IFDIR:  fs.ModeDir,
	syscall.S_IFLNK:  fs.ModeSymlink,
	syscall.S_IFIFO:  fs.ModeNamedPipe,
	syscall.S_IFSOCK: fs.ModeSocket,
	syscall.S_IFBLK:  fs.ModeDevice,
	syscall.S_IFCHR:  fs.ModeDevice | fs.ModeCharDevice,
}

// fileMode converts st_mode.
func fileMode(mode uint32) fs.FileMode {
	kind, known := types[mode&syscall.S_IFMT]
	if !known {
		kind = fs.ModeIrregular
	}
	kind |= fs.FileMode(mode & 0o777)
	if mode&syscall.S_ISUID != 0 {
		kind |= fs.ModeSetuid
	}
	if mode&syscall.S_ISGID != 0 {
		kind |= fs.ModeSetgid
	}
	if mode&syscall.S_ISVTX != 0 {
		kind |= fs.ModeSticky
	}
	return kind
}

// A dirEntry is an entry of the directory at a path of the volume.
type dirEntry struct {
	volume    *Volume
	directory string
	name      string
	kind      fs.FileMode
}

func (e *dirEntry) Name() string      { return e.name }
func (e *dirEntry) IsDir() bool       { return e.kind.IsDir() }
func (e *dirEntry) Type() fs.FileMode { return e.kind }
func (e *dirEntry) String() string    { return fs.FormatDirEntry(e) }

// Info works for each name of the directory, even for a name that is not UTF-8 and so is not valid in package fs.
func (e *dirEntry) Info() (fs.FileInfo, error) {
	var info *fileInfo
	absolute := path.Join(e.directory, e.name)
	err := e.volume.call(func() (err error) {
		info, err = stat(e.volume.handle, absolute, false)
		return err
	})
	if err != nil {
		return nil, pathError("lstat", absolute[1:], absolute, err)
	}
	info.name = e.name
	return info, nil
}
