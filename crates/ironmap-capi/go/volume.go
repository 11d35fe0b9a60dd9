// Package ironmap reads the files of ext4 and XFS volumes that are not mounted: images, partitions and other devices. It needs no mount. It
// needs root only for a device that only root may read. The C library libironmap does the work.
//
// The library has no cache of file data. Each File.ReadAt reads the device. File.Read reads ahead.
package ironmap

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"strings"
	"sync"
)

// callsInFlight is the largest number of calls on a volume that are in the library at a time. Each of them blocks a thread, and Go ends a
// program that needs more than 10,000 threads.
const callsInFlight = 256

// A Volume is an open volume. It is open for reading only, and does not change. Many goroutines can use it.
type Volume struct {
	// slots contains an element for each call that is in the library.
	slots chan struct{}
	// lock is held for reading by each call, and for writing by Close, which therefore waits for the calls.
	lock   sync.RWMutex
	closed bool
	handle volumeHandle
	pool   poolHandle
	// files are the open files.
	files sync.Map
}

type options struct {
	engine            string
	noLoad, truncated bool
	superblock        uint64
	threads, depth    uint32
}

// An Option changes how Open opens a volume.
type Option func(*options)

// Engine sets the I/O engine, such as "io_uring" or "psync". Without it, the library chooses.
func Engine(name string) Option { return func(o *options) { o.engine = name } }

// NoLoad does not recover the journal. Files may be damaged.
func NoLoad() Option { return func(o *options) { o.noLoad = true } }

// Truncated opens a volume whose device is shorter than the volume. A read past the end of the device fails.
func Truncated() Option { return func(o *options) { o.truncated = true } }

// Superblock opens a volume of ext4 with the copy of the superblock in this block.
func Superblock(block uint64) Option { return func(o *options) { o.superblock = block } }

// Threads sets the number of threads that read files, and the number of requests that each thread has in flight. For 0, the library chooses.
func Threads(threads, depth uint32) Option {
	return func(o *options) { o.threads, o.depth = threads, depth }
}

// Open opens a volume. The location is a path of an image or a device, or a location such as "disk.img@p1", "qcow2:disk.qcow2@p1" or
// "nbd://server/export". The caller closes the volume. A volume that is not closed uses memory, threads and descriptors until the program
// ends.
//
// The error is a *fs.PathError with an *Error, or with fs.ErrInvalid for a location or engine with a zero byte.
func Open(location string, opts ...Option) (*Volume, error) {
	var o options
	for _, option := range opts {
		option(&o)
	}
	v, err := open(location, &o)
	if err != nil {
		return nil, pathError("open", location, location, err)
	}
	return v, nil
}

func open(location string, o *options) (*Volume, error) {
	if strings.IndexByte(location+o.engine, 0) >= 0 {
		return nil, fs.ErrInvalid
	}
	handle, err := openVolume(location, o)
	if err != nil {
		return nil, err
	}
	pool, err := startPool(handle, o.threads, o.depth)
	if err != nil {
		return nil, errors.Join(err, closeVolume(handle))
	}
	return &Volume{handle: handle, pool: pool, slots: make(chan struct{}, callsInFlight)}, nil
}

// Close waits for the calls of other goroutines, and closes the volume and all its files. A later call on the volume or on its files returns
// an error that matches fs.ErrClosed; so does a second Close.
func (v *Volume) Close() error {
	v.lock.Lock()
	defer v.lock.Unlock()
	if v.closed {
		return fs.ErrClosed
	}
	v.closed = true
	var failed []error
	for file := range v.files.Range {
		failed = append(failed, file.(*File).end())
	}
	v.files.Clear()
	return errors.Join(append(failed, freePool(v.pool), closeVolume(v.handle))...)
}

// call runs a call of the library, unless the volume is closed.
func (v *Volume) call(work func() error) error {
	v.slots <- struct{}{}
	defer func() { <-v.slots }()
	v.lock.RLock()
	defer v.lock.RUnlock()
	if v.closed {
		return fs.ErrClosed
	}
	return work()
}

// at runs a call of the library on a path, which begins with a slash, if the name is valid.
func (v *Volume) at(op, name string, work func(path string) error) error {
	err := fs.ErrInvalid
	if fs.ValidPath(name) && strings.IndexByte(name, 0) < 0 {
		err = v.call(func() error { return work(absolute(name)) })
	}
	if err != nil {
		return pathError(op, name, absolute(name), err)
	}
	return nil
}

// absolute returns the path in the volume for a name of package fs.
func absolute(name string) string {
	if name == "." {
		return "/"
	}
	return "/" + name
}

// Xattr returns the value of an extended attribute, such as "security.capability". The name is that of a file in FS. A symbolic link is
// followed. The error matches syscall.ENODATA if the attribute does not exist.
func (v *Volume) Xattr(name, attribute string) ([]byte, error) {
	if strings.IndexByte(attribute, 0) >= 0 {
		return nil, &fs.PathError{Op: "getxattr", Path: name, Err: fs.ErrInvalid}
	}
	var found []byte
	err := v.at("getxattr", name, func(path string) (err error) {
		found, err = getXattr(v.handle, path, attribute)
		return err
	})
	return found, err
}

// Xattrs returns the names of all extended attributes of a file. A symbolic link is followed.
func (v *Volume) Xattrs(name string) ([]string, error) {
	var names []string
	err := v.at("listxattr", name, func(path string) error {
		list, err := listXattrs(v.handle, path)
		for name := range bytes.SplitSeq(list, []byte{0}) {
			if len(name) > 0 {
				names = append(names, string(name))
			}
		}
		return err
	})
	return names, err
}

// Unknown is the inode or block of a Finding that has none.
const Unknown = math.MaxUint64

// A Severity states how a fault affects the content of a volume.
type Severity uint32

const (
	// Note is not a fault.
	Note Severity = iota
	// Repairable is a fault that can be repaired without loss.
	Repairable
	// DataLoss is the loss of content or names.
	DataLoss
	// Fatal is a fault that makes the volume unusable.
	Fatal
)

// A Finding is a fault that a check has found.
type Finding struct {
	// Severity states how the fault affects the content.
	Severity Severity
	// Inode is the number of the inode, or Unknown.
	Inode uint64
	// Block is the number of the block, or Unknown.
	Block uint64
	// Kind is the name of the kind of fault.
	Kind string
	// Message is one line with the place and the fault.
	Message string
}

// A Report is the result of a check.
type Report struct {
	// Findings are the faults and notes: at most 100,000.
	Findings []Finding
	// Counts are the numbers of findings of each Severity.
	Counts [4]uint64
	// Inodes, Directories and Blocks are the numbers of those in use.
	Inodes, Directories, Blocks uint64
}

// Clean reports whether the volume has no faults.
func (r *Report) Clean() bool {
	return r.Counts[Repairable]+r.Counts[DataLoss]+r.Counts[Fatal] == 0
}

// Check checks all metadata of the volume, and changes nothing. Close waits for it.
func (v *Volume) Check() (*Report, error) {
	var report *Report
	err := v.call(func() (err error) {
		report, err = checkVolume(v.handle)
		return err
	})
	return report, err
}
