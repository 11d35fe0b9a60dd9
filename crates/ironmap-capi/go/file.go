package ironmap

import (
	"bufio"
	"io"
	"io/fs"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	// maxRead is the size of the largest request in bytes. The library copies each request through its own memory.
	maxRead = 4 << 20
	// readAhead is the number of bytes that File.Read reads at a time. The library has no cache.
	readAhead = 128 << 10
)

// A File is an open regular file. Many goroutines can use it. Calls of ReadAt may read several ranges at the same time; Read and Seek
// share a position, and wait for each other.
type File struct {
	volume *Volume
	name   string
	info   *fileInfo
	handle fileHandle
	closed atomic.Bool

	// lock protects the position and the reader, which begins at the position.
	lock   sync.Mutex
	pos    int64
	reader *bufio.Reader
}

var (
	_ io.ReaderAt    = (*File)(nil)
	_ io.ReadSeeker  = (*File)(nil)
	_ fs.ReadDirFile = (*dir)(nil)
)

// openRegular opens the file of a name. The caller is in a call on the volume.
func (v *Volume) openRegular(name string, info *fileInfo) (fs.File, error) {
	handle, err := openFile(v.pool, absolute(name))
	if err != nil {
		return nil, err
	}
	file := &File{volume: v, name: name, info: info, handle: handle}
	v.files.Store(file, nil)
	return file, nil
}

// call runs a call of the library, unless the file or its volume is closed.
func (f *File) call(op string, work func() error) error {
	err := f.volume.call(func() error {
		if f.closed.Load() {
			return fs.ErrClosed
		}
		return work()
	})
	if err != nil {
		return &fs.PathError{Op: op, Path: f.name, Err: err}
	}
	return nil
}

// end closes the handle, unless it is already closed.
func (f *File) end() error {
	if f.closed.Swap(true) {
		return fs.ErrClosed
	}
	return closeFile(f.handle)
}

// Close closes the file. A ReadAt of another goroutine that has begun is carried out, or returns an error that matches fs.ErrClosed.
func (f *File) Close() error {
	return f.call("close", func() error {
		f.volume.files.Delete(f)
		return f.end()
	})
}

// Stat returns the attributes.
func (f *File) Stat() (fs.FileInfo, error) {
	if err := f.call("stat", func() error { return nil }); err != nil {
		return nil, err
	}
	return f.info, nil
}

// ReadAt reads from the device, at any position and of any length. Many goroutines can call it at the same time.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	err := f.call("read", func() error {
		if off < 0 {
			return fs.ErrInvalid
		}
		want := int(min(int64(len(p)), max(0, f.info.size-off)))
		for done < want {
			count, err := pread(f.handle, p[done:min(want, done+maxRead)], off+int64(done))
			if err != nil {
				return err
			}
			if count == 0 {
				return io.ErrUnexpectedEOF
			}
			done += count
		}
		return nil
	})
	if err == nil && done < len(p) {
		err = io.EOF
	}
	return done, err
}

// Read reads from the position of the file, and reads ahead.
func (f *File) Read(p []byte) (int, error) {
	if err := f.call("read", func() error { return nil }); err != nil {
		return 0, err
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.reader == nil {
		rest := io.NewSectionReader(f, f.pos, math.MaxInt64-f.pos)
		f.reader = bufio.NewReaderSize(rest, int(max(1, min(readAhead, f.info.size-f.pos))))
	}
	count, err := f.reader.Read(p)
	f.pos += int64(count)
	return count, err
}

// Seek sets the position for Read. A position past the end of the file is permitted.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	pos := offset
	err := f.call("seek", func() error {
		switch whence {
		case io.SeekStart:
		case io.SeekCurrent:
			pos += f.pos
		case io.SeekEnd:
			pos += f.info.size
		default:
			return fs.ErrInvalid
		}
		if pos < 0 { // or too large
			return fs.ErrInvalid
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if pos != f.pos {
		f.pos, f.reader = pos, nil
	}
	return pos, nil
}

// A dir is an open directory.
type dir struct {
	volume *Volume
	name   string
	info   *fileInfo

	// lock protects the fields below.
	lock   sync.Mutex
	closed bool
	// rest are the entries that ReadDir has not returned, if isRead.
	rest   []fs.DirEntry
	isRead bool
}

// call runs a function, unless the directory or its volume is closed. The function is not in a call on the volume.
func (d *dir) call(op string, work func() error) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	err := d.volume.call(func() error {
		if d.closed {
			return fs.ErrClosed
		}
		return nil
	})
	if err == nil {
		err = work()
	}
	if _, isPath := err.(*fs.PathError); err == nil || err == io.EOF || isPath {
		return err
	}
	return &fs.PathError{Op: op, Path: d.name, Err: err}
}

func (d *dir) Stat() (fs.FileInfo, error) {
	if err := d.call("stat", func() error { return nil }); err != nil {
		return nil, err
	}
	return d.info, nil
}

func (d *dir) Read([]byte) (int, error) {
	return 0, d.call("read", func() error { return syscall.EISDIR })
}

func (d *dir) Close() error {
	return d.call("close", func() error {
		d.closed = true
		return nil
	})
}

// ReadDir returns the entries in the order of their names.
func (d *dir) ReadDir(n int) ([]fs.DirEntry, error) {
	var list []fs.DirEntry
	err := d.call("readdir", func() (err error) {
		if !d.isRead {
			if d.rest, err = (volumeFS{d.volume}).ReadDir(d.name); err != nil {
				return err
			}
			d.isRead = true
		}
		if n > 0 && len(d.rest) == 0 {
			return io.EOF
		}
		count := len(d.rest)
		if n > 0 {
			count = min(n, count)
		}
		list, d.rest = d.rest[:count:count], d.rest[count:]
		return nil
	})
	return list, err
}
