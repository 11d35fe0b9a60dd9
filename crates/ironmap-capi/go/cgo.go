package ironmap

/*
#cgo pkg-config: ironmap
#cgo noescape im_volume_open
#cgo noescape im_volume_close
#cgo noescape im_volume_pool
#cgo noescape im_pool_free
#cgo noescape im_pool_open
#cgo noescape im_pool_close
#cgo noescape im_pool_pread
#cgo noescape im_stat
#cgo noescape im_readlink
#cgo noescape im_opendir
#cgo noescape im_closedir
#cgo noescape im_getxattr
#cgo noescape im_listxattr
#cgo nocallback im_volume_open
#cgo nocallback im_volume_close
#cgo nocallback im_volume_pool
#cgo nocallback im_pool_free
#cgo nocallback im_pool_open
#cgo nocallback im_pool_close
#cgo nocallback im_pool_pread
#cgo nocallback im_stat
#cgo nocallback im_readlink
#cgo nocallback im_opendir
#cgo nocallback im_closedir
#cgo nocallback im_getxattr
#cgo nocallback im_listxattr
#include "shim.h"
*/
import "C"

import (
	"errors"
	"math"
	"runtime/cgo"
	"slices"
	"syscall"
	"time"
	"unsafe"
)

// The handles of the library. The library detects a handle that was closed, so no mistake of this package accesses freed memory.
type (
	volumeHandle uintptr
	poolHandle   uintptr
	fileHandle   uintptr
)

// result returns the error of a call, or nil if the result is not negative.
func result(code C.ptrdiff_t, why *C.struct_ironmap_failure) error {
	if code >= 0 {
		return nil
	}
	failed := &Error{Errno: syscall.Errno(-code)}
	if syscall.Errno(why.error) == failed.Errno {
		failed.Kind = goText(why.kind[:])
		failed.Message = goText(why.message[:])
	}
	return failed
}

// goText returns the text before a zero byte. C.GoString would move the failure of each call to the heap.
func goText(chars []C.char) string {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&chars[0])), len(chars))
	if end := slices.Index(bytes, 0); end >= 0 {
		bytes = bytes[:end]
	}
	return string(bytes)
}

// text returns a text that ends with a zero byte, in Go memory.
func text(s string) *C.char {
	bytes := make([]byte, len(s)+1)
	copy(bytes, s)
	return (*C.char)(unsafe.Pointer(&bytes[0]))
}

func bit(set bool) C.uint32_t {
	if set {
		return 1
	}
	return 0
}

func openVolume(location string, o *options) (volumeHandle, error) {
	var why C.struct_ironmap_failure
	var volume C.uintptr_t
	var engine *C.char
	if o.engine != "" {
		engine = text(o.engine)
	}
	c := C.struct_ironmap_volume_options{no_load: bit(o.noLoad), truncated: bit(o.truncated), superblock: C.uint64_t(o.superblock)}
	code := C.im_volume_open(text(location), engine, &c, &volume, &why)
	return volumeHandle(volume), result(C.ptrdiff_t(code), &why)
}

func closeVolume(volume volumeHandle) error {
	var why C.struct_ironmap_failure
	return result(C.ptrdiff_t(C.im_volume_close(C.uintptr_t(volume), &why)), &why)
}

func startPool(volume volumeHandle, threads, depth uint32) (poolHandle, error) {
	var why C.struct_ironmap_failure
	var pool C.uintptr_t
	code := C.im_volume_pool(C.uintptr_t(volume), C.uint32_t(threads), C.uint32_t(depth), &pool, &why)
	return poolHandle(pool), result(C.ptrdiff_t(code), &why)
}

func freePool(pool poolHandle) error {
	var why C.struct_ironmap_failure
	return result(C.ptrdiff_t(C.im_pool_free(C.uintptr_t(pool), &why)), &why)
}

func openFile(pool poolHandle, path string) (fileHandle, error) {
	var why C.struct_ironmap_failure
	var file C.uintptr_t
	code := C.im_pool_open(C.uintptr_t(pool), text(path), &file, &why)
	return fileHandle(file), result(C.ptrdiff_t(code), &why)
}

func closeFile(file fileHandle) error {
	var why C.struct_ironmap_failure
	return result(C.ptrdiff_t(C.im_pool_close(C.uintptr_t(file), &why)), &why)
}

// pread reads into memory that is not empty.
func pread(file fileHandle, memory []byte, pos int64) (int, error) {
	var why C.struct_ironmap_failure
	count := C.im_pool_pread(C.uintptr_t(file), unsafe.Pointer(&memory[0]), C.size_t(len(memory)), C.uint64_t(pos), &why)
	return max(0, int(count)), result(count, &why)
}

func flags(follow bool) C.int {
	if follow {
		return 0
	}
	return C.AT_SYMLINK_NOFOLLOW
}

func instant(t C.struct_ironmap_time) time.Time {
	return time.Unix(int64(t.seconds), int64(t.nanoseconds))
}

// stat returns the attributes of a file without its name.
func stat(volume volumeHandle, path string, follow bool) (*fileInfo, error) {
	var why C.struct_ironmap_failure
	var c C.struct_ironmap_stat
	code := C.im_stat(C.uintptr_t(volume), text(path), flags(follow), &c, &why)
	if err := result(C.ptrdiff_t(code), &why); err != nil {
		return nil, err
	}
	info := &fileInfo{mode: fileMode(uint32(c.mode)), size: int64(min(c.size, math.MaxInt64))}
	info.stat = Stat{
		Inode: uint64(c.inode), Links: uint32(c.links), UID: uint32(c.uid), GID: uint32(c.gid),
		Blocks: uint64(c.blocks), Flags: uint32(c.flags), DeviceMajor: uint32(c.device_major), DeviceMinor: uint32(c.device_minor),
		Accessed: instant(c.accessed), Modified: instant(c.modified), Changed: instant(c.changed),
	}
	if c.has_created == 1 {
		info.stat.Created = instant(c.created)
	}
	return info, nil
}

// value calls a function that returns a length, and then stores a value of this length. No value changes, because the volume is read-only.
func value(call func(memory unsafe.Pointer, size C.size_t, why *C.struct_ironmap_failure) C.ptrdiff_t) ([]byte, error) {
	var why C.struct_ironmap_failure
	size := call(nil, 0, &why)
	if size <= 0 {
		return []byte{}, result(size, &why)
	}
	memory := make([]byte, size)
	size = call(unsafe.Pointer(&memory[0]), C.size_t(size), &why)
	if err := result(size, &why); err != nil {
		return nil, err
	}
	return memory[:size], nil
}

func readLink(volume volumeHandle, path string) (string, error) {
	target, err := value(func(memory unsafe.Pointer, size C.size_t, why *C.struct_ironmap_failure) C.ptrdiff_t {
		return C.im_readlink(C.uintptr_t(volume), text(path), (*C.char)(memory), size, why)
	})
	return string(target), err
}

func getXattr(volume volumeHandle, path, name string) ([]byte, error) {
	return value(func(memory unsafe.Pointer, size C.size_t, why *C.struct_ironmap_failure) C.ptrdiff_t {
		return C.im_getxattr(C.uintptr_t(volume), text(path), text(name), memory, size, 0, why)
	})
}

// listXattrs returns names with a zero byte at the end of each.
func listXattrs(volume volumeHandle, path string) ([]byte, error) {
	return value(func(memory unsafe.Pointer, size C.size_t, why *C.struct_ironmap_failure) C.ptrdiff_t {
		return C.im_listxattr(C.uintptr_t(volume), text(path), (*C.char)(memory), size, 0, why)
	})
}

// A dirent is an entry of a directory. The mode is 0 if the directory does not store the type of the file.
type dirent struct {
	name string
	mode uint32
}

// readDirectory returns all entries of a directory, in the order of the directory.
func readDirectory(volume volumeHandle, path string) (list []dirent, err error) {
	var why C.struct_ironmap_failure
	var directory C.uintptr_t
	if err := result(C.ptrdiff_t(C.im_opendir(C.uintptr_t(volume), text(path), &directory, &why)), &why); err != nil {
		return nil, err
	}
	defer func() {
		var why C.struct_ironmap_failure
		err = errors.Join(err, result(C.ptrdiff_t(C.im_closedir(directory, &why)), &why))
	}()
	entries := make([]C.struct_ironmap_dirent, 64)
	for {
		count := C.im_readdir(directory, &entries[0], C.size_t(len(entries)), &why)
		if err := result(count, &why); err != nil {
			return nil, err
		}
		for i := range entries[:count] {
			entry := &entries[i]
			list = append(list, dirent{C.GoStringN(&entry.name[0], C.int(entry.len)), uint32(entry.kind)})
		}
		if int(count) < len(entries) {
			return list, nil
		}
	}
}

func checkVolume(volume volumeHandle) (*Report, error) {
	var why C.struct_ironmap_failure
	var c C.struct_ironmap_check_report
	report := &Report{}
	list := cgo.NewHandle(report)
	defer list.Delete()
	if err := result(C.ptrdiff_t(C.im_check(C.uintptr_t(volume), C.uintptr_t(list), &c, &why)), &why); err != nil {
		return nil, err
	}
	for i, count := range c.counts {
		report.Counts[i] = uint64(count)
	}
	report.Inodes, report.Directories, report.Blocks = uint64(c.inodes), uint64(c.directories), uint64(c.blocks)
	return report, nil
}
