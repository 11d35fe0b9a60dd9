#ifndef IRONMAP_H
#define IRONMAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// The promise that no program dedupes a host file on XFS while it is open. A flag of `ironmap_open` that no flag of `open(2)` equals.
#define IRONMAP_O_ASSUME_NO_DEDUPE 1073741824

// Memory for requests. Any thread may use it.
struct ironmap_buffer;

// An open directory, whose entries can be read. Any thread may use it.
struct ironmap_directory;

// A file that was opened on a queue. Only the thread of the queue may use it.
struct ironmap_file;

// The host: access to the files of the mounted file systems. Any thread may use it.
struct ironmap_host;

// The description of an image to build. Any thread may use it.
struct ironmap_image;

// A pool of threads that have a queue each. Any thread may use it.
struct ironmap_pool;

// A file that was opened on a pool. Any thread may use it.
struct ironmap_pool_file;

// A queue of requests. Only the thread that made it may use it.
struct ironmap_queue;

// A volume: an unmounted file system. Any thread may use it.
struct ironmap_volume;

// A fault that a check has found. The texts are valid until the callback returns.
struct ironmap_finding {
    // 0: a note, no fault. 1: a fault that can be repaired without loss. 2: content or names are lost. 3: the volume cannot be used.
    uint32_t severity;
    // Not used: 0.
    uint32_t unused;
    // The inode, or UINT64_MAX if it is unknown.
    uint64_t inode;
    // The block, or UINT64_MAX if it is unknown.
    uint64_t block;
    // The name of the kind of fault.
    const char *kind;
    // One line with the place and the fault.
    const char *message;
};

// The result of a check.
struct ironmap_check_report {
    // The number of findings of each severity.
    uint64_t counts[4];
    // The number of inodes in use.
    uint64_t inodes;
    // The number of directories in use.
    uint64_t directories;
    // The number of blocks in use.
    uint64_t blocks;
};

// An entry of a directory.
struct ironmap_dirent {
    // The inode number.
    uint64_t inode;
    // The type, as in `st_mode`: S_IFREG, S_IFDIR and so on; 0 if the directory does not store it.
    uint32_t kind;
    // The length of the name in bytes, without the zero byte at its end.
    uint32_t len;
    // The name, with a zero byte at its end. It may contain any bytes except 0 and a slash.
    char name[256];
};

// The options of `ironmap_disk_build`. The caller zeroes the structure first; 0 stands for the default.
struct ironmap_disk_options {
    // The size of the disk in bytes; 0 stands for the needs of the partitions, or the size of the device.
    uint64_t size;
    // The sector size of an image: 512 or 4096; 0 stands for 512. A device has its own sector size.
    uint32_t sector_size;
    // 1 overwrites known content.
    uint32_t force;
    // The GUID of the disk, 16 bytes; NULL for a random or derived GUID.
    const uint8_t *guid;
    // All GUIDs, UUIDs and salts that are not given are derived from this text; NULL for random ones.
    const char *seed;
    // 1 makes a reproducible disk: no time on the disk is later than `source_date_epoch`, and without `seed`, values are derived from it.
    uint32_t has_source_date_epoch;
    // Must be 0.
    uint32_t reserved;
    // A time in seconds since 1970.
    int64_t source_date_epoch;
};

// A partition that was made.
struct ironmap_disk_part {
    // The GUID of the type.
    uint8_t kind[16];
    // The GUID of the partition.
    uint8_t guid[16];
    // The first byte on the disk.
    uint64_t start;
    // The length in bytes.
    uint64_t length;
    // The content: "ext4", "FAT", "swap", "verity" or "".
    char content[16];
    // 1 if the partition has a hash tree of dm-verity in another partition.
    uint32_t has_root_hash;
    // The root hash of this tree.
    uint8_t root_hash[32];
};

// The options of `ironmap_verity_make`. The caller zeroes the structure first; 0 stands for the default.
struct ironmap_verity_options {
    // The size of a data block: a power of two from 512 to 524288; 0 stands for 4096.
    uint32_t data_block_size;
    // The size of a hash block: a power of two from 512 to 524288; 0 stands for 4096.
    uint32_t hash_block_size;
    // The salt; NULL for a random salt of 32 bytes.
    const uint8_t *salt;
    // The length of the salt in bytes, at most 256.
    uint64_t salt_size;
    // The UUID, 16 bytes; NULL for a random UUID.
    const uint8_t *uuid;
    // 1 overwrites known content in the place of the tree.
    uint32_t force;
    // Must be 0.
    uint32_t reserved;
};

// A hash tree that was made.
struct ironmap_verity_info {
    // The root hash.
    uint8_t root_hash[32];
    // The UUID.
    uint8_t uuid[16];
    // The position of the superblock on the device of the tree, in bytes.
    uint64_t offset;
    // The length of the superblock and the tree in bytes.
    uint64_t length;
    // The number of data blocks.
    uint64_t data_blocks;
};

// The reason for the failure of a call.
//
// `error` is the errno that the call has returned with a minus sign. `kind` is a name of the kind of failure, such as "NotFound" or
// "Corrupt": the names of the Rust library's `ErrorKind`. `structure` and `field` name the structure on disk and its field, and are empty if
// the failure concerns none. `inode` and `block` are UINT64_MAX if they are unknown. `message` is one line, which names the operation, the
// place and the cause. All texts end with a zero byte.
struct ironmap_failure {
    // The errno.
    int error;
    // The name of the kind of failure.
    char kind[28];
    // The name of the structure on disk.
    char structure[64];
    // The name of the field in the structure.
    char field[64];
    // The inode number.
    uint64_t inode;
    // The block number.
    uint64_t block;
    // The message.
    char message[1024];
};

// A time: seconds since 1970 in UTC, and nanoseconds.
struct ironmap_time {
    // Seconds since the beginning of 1970; negative for earlier times.
    int64_t seconds;
    // Nanoseconds after the second: 0 to 999999999.
    uint32_t nanoseconds;
    // Not used: 0.
    uint32_t unused;
};

// The attributes of a file.
struct ironmap_stat {
    // The inode number.
    uint64_t inode;
    // The type and the permissions, as `st_mode`.
    uint32_t mode;
    // The number of names.
    uint32_t links;
    // The user that owns the file.
    uint32_t uid;
    // The group that owns the file.
    uint32_t gid;
    // The size in bytes.
    uint64_t size;
    // The allocated space in units of 512 bytes.
    uint64_t blocks;
    // The size of a block in bytes.
    uint32_t block_size;
    // The flags of the inode, as FS_IOC_GETFLAGS returns them.
    uint32_t flags;
    // The major number of a device; 0 for other files.
    uint32_t device_major;
    // The minor number of a device; 0 for other files.
    uint32_t device_minor;
    // The project of the file; 0 if there are no projects.
    uint32_t project;
    // 1 if the format stores the time of creation.
    uint32_t has_created;
    // The time of the last read.
    struct ironmap_time accessed;
    // The time of the last change of the content.
    struct ironmap_time modified;
    // The time of the last change of the attributes.
    struct ironmap_time changed;
    // The time of creation, if `has_created` is 1.
    struct ironmap_time created;
};

// How a host file is read.
struct ironmap_host_report {
    // 1 if the file is read from its device; 0 if the kernel reads it.
    uint32_t raw;
    // 1 if the reason is temporary: the file may be read from its device later.
    uint32_t temporary;
    // The number of times that the kernel has taken the lease of the file back.
    uint64_t breaks;
    // The reason why the kernel reads the file; empty if `raw` is 1.
    char why[256];
};

// A read of `ironmap_pool_read_many`.
struct ironmap_pool_read {
    // The memory that receives the data.
    void *memory;
    // The number of bytes to read.
    size_t len;
    // The position in the file, in bytes.
    uint64_t pos;
    // Set by the call: the number of bytes that were read, or an errno with a minus sign.
    ptrdiff_t result;
};

// A read of `ironmap_read_many`.
struct ironmap_read {
    // The file, which was opened on the queue of the call.
    struct ironmap_file *file;
    // The memory. No other read of the call may use it.
    void *memory;
    // The number of bytes to read.
    size_t len;
    // The position in the file, in bytes.
    uint64_t pos;
    // Set by the call: the number of bytes that were read, or an errno with a minus sign.
    ptrdiff_t result;
};

// The completion of a request.
struct ironmap_completion {
    // The pointer that was passed with the request.
    void *user;
    // The number of bytes that were transferred, or an errno with a minus sign.
    ptrdiff_t result;
};

// The options of `ironmap_volume_open`. The caller zeroes the structure first; 0 stands for the default.
struct ironmap_volume_options {
    // 1 opens the volume for writing. On XFS, only data that a file already has can then be overwritten: calls that change names, attributes
    // or sizes fail with -EROFS or -EOPNOTSUPP.
    uint32_t write;
    // 1 does not recover the journal. Only for reading: files may be damaged.
    uint32_t no_load;
    // 1 opens a volume whose device is shorter than the volume. Only for reading.
    uint32_t truncated;
    // The longest time in milliseconds between a change and its commit; 0 stands for 5000.
    uint32_t commit_ms;
    // The block of a copy of the superblock of ext4; 0 stands for the first superblock.
    uint64_t superblock;
};

// The properties of a volume.
struct ironmap_volume_info {
    // The name of the format: "ext4" or "xfs".
    char format[16];
    // The name of the I/O engine.
    char engine[16];
    // 1 if the volume is open for writing.
    uint32_t writable;
    // The size of a block in bytes.
    uint32_t block_size;
    // The number of blocks.
    uint64_t blocks;
    // The number of free blocks.
    uint64_t free_blocks;
    // The number of free blocks that users other than root can allocate.
    uint64_t available_blocks;
    // The number of inodes.
    uint64_t inodes;
    // The number of free inodes.
    uint64_t free_inodes;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Allocates a buffer of `size` zeroed bytes, aligned for direct I/O. The caller frees it with `ironmap_buffer_free`.
//
// Returns 0; -ENOMEM; -EMFILE if too many buffers exist.
//
// Requires:
// `buffer` can be written to.
int ironmap_buffer_new(size_t size, struct ironmap_buffer **buffer);

// Makes a buffer from memory that the caller owns, such as huge pages or the buffer pool of a database.
//
// `release` may be NULL. Otherwise the library calls it with `arg`, in any thread, after the buffer and all queues with which it is
// registered were freed, and all its requests are complete. If the call fails, `release` is not called.
//
// Returns 0; -EFAULT for NULL; -EINVAL for more bytes than the address space has; -EMFILE if too many buffers exist.
//
// Requires:
// The `size` bytes from `memory` can be read and written until `release` is called. `buffer` can be written to.
int ironmap_buffer_wrap(void *memory,
                        size_t size,
                        void (*release)(void*),
                        void *arg,
                        struct ironmap_buffer **buffer);

// The address of the memory of a buffer, or NULL if the handle is not open.
void *ironmap_buffer_data(struct ironmap_buffer *buffer);

// The number of bytes of a buffer, or -EBADF.
ptrdiff_t ironmap_buffer_size(struct ironmap_buffer *buffer);

// Frees a buffer. The memory is released when its requests in flight are complete.
//
// Returns 0 or -EBADF. Any thread may call it.
int ironmap_buffer_free(struct ironmap_buffer *buffer);

// Checks all metadata of a volume, and changes nothing. Then calls `found` with `arg` for each finding, in the calling thread. The calls
// end if `found` returns a value other than 0. At most 100,000 findings are passed.
//
// `found` and `report` may be NULL. `size` is `sizeof(struct ironmap_check_report)`. In a volume that is open for
// writing, changes since the last `ironmap_volume_sync` may be reported as faults.
//
// Returns 0 if there are no faults; 1 if there are faults; -EIO; -EBADF.
//
// Requires:
// `found` can be called with `arg` and a finding, and `report` is NULL or can be written to for `size` bytes.
int ironmap_check(struct ironmap_volume *volume,
                  int (*found)(void*, const struct ironmap_finding*),
                  void *arg,
                  struct ironmap_check_report *report,
                  size_t size);

// Opens a directory of a volume to read its entries. The caller closes it with `ironmap_closedir`.
//
// Returns 0; -ENOTDIR, and the other errors of `ironmap_stat`; -ENOKEY for an encrypted directory; -EMFILE if too many
// directories are open.
//
// Requires:
// `path` ends with a zero byte, and `directory` can be written to.
int ironmap_opendir(struct ironmap_volume *volume, const char *path, struct ironmap_directory **directory);

// Stores the next entry of a directory. The entries "." and ".." are omitted. `size` is `sizeof(struct ironmap_dirent)`.
//
// Returns 1 if there is an entry, and 0 at the end; -EUCLEAN, -EIO; -EBADF; -EBUSY while another thread is in a call on the directory;
// -EINVAL for NULL.
//
// Requires:
// `entry` can be written to for `size` bytes.
int ironmap_readdir(struct ironmap_directory *directory,
                    struct ironmap_dirent *entry,
                    size_t size);

// Closes a directory. Returns 0 or -EBADF.
int ironmap_closedir(struct ironmap_directory *directory);

// Makes a disk: a GPT, partitions, and their content, in an image file or on a device. An image file is made under a temporary name.
//
// Each of the `count` partitions is a text TYPE:SIZE[:KEY=VALUE,...], as for the command `ironmap disk`, such as "esp:256M:files=efi" or
// "root:rest:files=tree,label=root". `options` may be NULL; `size` is `sizeof(struct ironmap_disk_options)`. `made` may be NULL; otherwise
// the call stores the properties of the partitions in this array of `count` structures, and `made_size` is
// `sizeof(struct ironmap_disk_part)`. `progress` and `arg` are used as in `ironmap_image_build`.
//
// Returns 0; -EEXIST if the location has known content and `force` is 0; -EBUSY if the location is in use, or is a member of an MD array or
// of an LVM volume group; -ENOSPC if the content does not fit; -EINTR if `progress` has ended the call; -EAGAIN if no thread can be
// started; -E2BIG for an option that this version does not know; -EINVAL for a wrong description; -ENOENT, -EACCES, -EIO.
//
// Requires:
// The texts end with a zero byte, `parts` points to `count` texts, `options` can be read for `size` bytes, `made` is NULL or can be written
// to for `count` structures, and `progress` can be called with `arg`.
int ironmap_disk_build(const char *location,
                       const char *const *parts,
                       size_t count,
                       const struct ironmap_disk_options *options,
                       size_t size,
                       struct ironmap_disk_part *made,
                       size_t made_size,
                       int (*progress)(void *arg, uint64_t files, uint64_t bytes),
                       void *arg);

// Makes the hash tree of the data at a location. The format is that of veritysetup. The tree is written to the location `hash`: a device, a
// partition, or an image file, which is made if it does not exist. If `hash` is NULL, the tree is appended to the data, which must be an image
// file. The data must not change afterwards.
//
// `options` may be NULL; `size` is `sizeof(struct ironmap_verity_options)`. The call stores the root hash and other properties of the tree in
// `info`; `info_size` is `sizeof(struct ironmap_verity_info)`.
//
// Returns 0; -EEXIST if the place of the tree has known content and `force` is 0; -EBUSY if the data or the place are in use; -EAGAIN if no
// thread can be started; -E2BIG for an option that this version does not know; -EINVAL for wrong options, and for data whose size is not a
// multiple of a data block; -ENOENT, -EACCES, -EIO.
//
// Requires:
// The texts end with a zero byte, `options` can be read for `size` bytes, and `info` can be written to for `info_size` bytes.
int ironmap_verity_make(const char *data,
                        const char *hash,
                        const struct ironmap_verity_options *options,
                        size_t size,
                        struct ironmap_verity_info *info,
                        size_t info_size);

// Verifies each block of the data at a location with the hash tree at the location `hash` and a root hash of 32 bytes. If `hash` is NULL, the
// tree is at the end of the data.
//
// Returns 0; -EUCLEAN if a block does not match: `ironmap_failure` names it; -EINVAL if there is no tree; -EBUSY if the data or the tree are
// being written; -EAGAIN if no thread can be started; -ENOENT, -EACCES, -EIO.
//
// Requires:
// The texts end with a zero byte, and `root_hash` can be read for 32 bytes.
int ironmap_verity_check(const char *data,
                         const char *hash,
                         const uint8_t *root_hash);

// Stores the reason of a failure in `failure`.
//
// With a handle of any type, the reason is that of the last failed call on this handle, in any thread. With NULL, the reason is that of
// the last failed call of the calling thread. This may be a call without a handle, such as a call that opens something. `size` is
// `sizeof(struct ironmap_failure)`. A successful call does not change the reason. If a call was refused because of its handle or its
// thread, the reason is returned only with NULL.
//
// Returns 0, -ENODATA if no call has failed, or -EINVAL if `failure` is NULL. Any thread may call it.
//
// Requires:
// `failure` can be written to for `size` bytes.
int ironmap_failure(const void *handle,
                    struct ironmap_failure *failure,
                    size_t size);

// The version of the library, such as "0.1.0". The text is static. Any thread may call it.
const char *ironmap_version(void);

// Opens a file on a queue.
//
// `flags` are those of `open(2)`: O_RDONLY, O_WRONLY or O_RDWR; O_CREAT, O_EXCL, O_TRUNC, O_APPEND; O_SYNC, O_DSYNC; O_DIRECT, which
// refuses misaligned requests; and IRONMAP_O_ASSUME_NO_DEDUPE. `mode` is the mode of a file that O_CREAT creates; no umask is applied.
// Files of the host can be read but not written. A file that was opened with O_WRONLY can also be read. In a volume, a path begins at its root,
// with or without a slash. The caller closes the file with `ironmap_close`; `ironmap_queue_free` closes it too.
//
// Returns 0; -ENOENT, -EEXIST, -EISDIR, -ENOTDIR, -ELOOP, -ENAMETOOLONG as for `open(2)`; -EROFS to write without permission; -ENOSPC, -EDQUOT
// with O_CREAT; -EINVAL for other flags, for O_CREAT without O_WRONLY or O_RDWR, and for a file that is not regular; -ENOKEY for an
// encrypted file; -EUCLEAN, -EIO for a damaged volume; -EMFILE if too many files are open; -EBUSY with O_TRUNC if the thread has requests
// in flight; -EBADF, -EPERM or -EBUSY as for any call on a queue.
//
// Requires:
// `path` ends with a zero byte, and `file` can be written to.
int ironmap_open(struct ironmap_queue *queue,
                 const char *path,
                 int flags,
                 uint32_t mode,
                 struct ironmap_file **file);

// Closes a file. Its requests in flight are carried out.
//
// Returns 0; -EBADF for a file that is already closed; -EPERM or -EBUSY as for any call on a queue.
int ironmap_close(struct ironmap_file *file);

// Reads up to `len` bytes from position `pos`, and waits.
//
// Returns the number of bytes, which is smaller than `len` only at the end of the file, and 0 past the end; -EINVAL for a misaligned
// request on a file with O_DIRECT; -EFAULT for NULL; -EIO and other errnos of the device; -EUCLEAN if the extent map of the file is
// damaged; -EBADF for a closed file; -EPERM in any thread other than that of the queue; -EBUSY in a signal handler that has interrupted a
// call on the queue.
//
// Requires:
// `memory` can be written to for `len` bytes.
ptrdiff_t ironmap_pread(struct ironmap_file *file,
                        void *memory,
                        size_t len,
                        uint64_t pos);

// Writes `len` bytes at position `pos`, and waits. With O_APPEND the position is the end of the file.
//
// The data are durable after `ironmap_fsync`, or at once with O_DSYNC or O_SYNC.
//
// Returns the number of bytes, which is smaller than `len` only if there is no space for all; -ENOSPC, -EDQUOT, -EFBIG, -EROFS; -EBUSY if
// the call would have to wait while another queue of the thread has requests in flight (section WAITS of ironmap(3)); and the errors of
// `ironmap_pread`.
//
// Requires:
// `memory` can be read for `len` bytes.
ptrdiff_t ironmap_pwrite(struct ironmap_file *file,
                         const void *memory,
                         size_t len,
                         uint64_t pos);

// Reads from position `pos` into several ranges of memory, and waits. `flags` are 0 or RWF_NOWAIT and RWF_HIPRI of `preadv2`.
//
// Returns the same as `ironmap_pread`; -EAGAIN if the call has RWF_NOWAIT and would have to wait; -EINVAL for other flags or a `count`
// that is not 0 to 1024.
//
// Requires:
// `iov` points to `count` structures, whose memory can be written to and does not overlap.
ptrdiff_t ironmap_preadv(struct ironmap_file *file,
                         const struct iovec *iov,
                         int count,
                         uint64_t pos,
                         int flags);

// Writes several ranges of memory at position `pos`, and waits. `flags` are 0 or RWF_DSYNC, RWF_SYNC, RWF_NOWAIT, RWF_HIPRI and RWF_ATOMIC
// of `pwritev2`.
//
// Returns the same as `ironmap_pwrite` and `ironmap_preadv`; -EOPNOTSUPP if the device cannot write the data atomically as RWF_ATOMIC requires.
//
// Requires:
// `iov` points to `count` structures, whose memory can be read.
ptrdiff_t ironmap_pwritev(struct ironmap_file *file,
                          const struct iovec *iov,
                          int count,
                          uint64_t pos,
                          int flags);

// Writes all `len` bytes at the end of the file, and waits. `pos` may be NULL; otherwise the call stores the position of the data there.
//
// Returns 0, or the errors of `ironmap_pwrite`. After -ENOSPC nothing was written.
//
// Requires:
// `memory` can be read for `len` bytes, and `pos` is NULL or can be written to.
int ironmap_append(struct ironmap_file *file,
                   const void *memory,
                   size_t len,
                   uint64_t *pos);

// Makes all completed writes of the file and its metadata durable.
//
// Returns 0; -EIO and other errnos of the device if the data or the metadata cannot be made durable; -EROFS if an earlier error has made
// the volume read-only; -EBADF, -EPERM or -EBUSY as for any call on a queue.
int ironmap_fsync(struct ironmap_file *file);

// Makes all completed writes of the file durable, with the metadata that a read needs. Returns the same as `ironmap_fsync`.
int ironmap_fdatasync(struct ironmap_file *file);

// The size of the file in bytes, or -EBADF, -EPERM or -EBUSY as for any call on a queue.
int64_t ironmap_size(struct ironmap_file *file);

// Stores the attributes of the file. `size` is `sizeof(struct ironmap_stat)`.
//
// Returns 0; -EINVAL for NULL; -ESTALE for a host file whose path names another file; -EUCLEAN, -EIO; -EBADF, -EPERM or -EBUSY as for any
// call on a queue.
//
// Requires:
// `stat` can be written to for `size` bytes.
int ironmap_fstat(struct ironmap_file *file,
                  struct ironmap_stat *stat,
                  size_t size);

// Sets the size of a file of a volume. If the file becomes larger, the added range reads as zeros.
//
// The call waits for the requests in flight on the file: section WAITS of ironmap(3).
//
// Returns 0; -EFBIG; -EROFS, also for a host file; -EIO; -EBUSY if the thread has requests in flight; -EBADF, -EPERM or -EBUSY as for any
// call on a queue.
int ironmap_ftruncate(struct ironmap_file *file,
                      uint64_t len);

// Sets the permissions of a file of a volume: the lower twelve bits of its mode. Returns the same as `ironmap_ftruncate`.
int ironmap_fchmod(struct ironmap_file *file,
                   uint32_t mode);

// Allocates, frees or moves the blocks of a range of a file of a volume. `mode` is that of `fallocate(2)`: 0, FALLOC_FL_KEEP_SIZE, or
// FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_COLLAPSE_RANGE or FALLOC_FL_INSERT_RANGE.
//
// The call waits for the requests in flight on the file: section WAITS of ironmap(3).
//
// Returns 0; -ENOSPC, -EFBIG; -EOPNOTSUPP for another mode; -EINVAL for a range that the mode does not accept; -EROFS, also for a host
// file; -EBUSY if the thread has requests in flight; -EBADF, -EPERM or -EBUSY as for any call on a queue.
int ironmap_fallocate(struct ironmap_file *file,
                      int mode,
                      uint64_t pos,
                      uint64_t len);

// Finds the next data (`whence` is SEEK_DATA) or the next hole (SEEK_HOLE) at or after a position, as `lseek(2)` does.
//
// Returns the position; -ENXIO past the end of the file, or if no data follow; -EINVAL for another `whence`; -EUCLEAN, -EIO; -EBADF, -EPERM
// or -EBUSY as for any call on a queue.
int64_t ironmap_seek(struct ironmap_file *file,
                     uint64_t pos,
                     int whence);

// Stores the report on how a host file is read. `size` is `sizeof(struct ironmap_host_report)`.
//
// Returns 0; -EINVAL for a file of a volume, or for NULL; -EBADF, -EPERM or -EBUSY as for any call on a queue.
//
// Requires:
// `report` can be written to for `size` bytes.
int ironmap_file_report(struct ironmap_file *file, struct ironmap_host_report *report, size_t size);

// Begins the description of an ext4 image. Without a size, the image is as large as its content needs, with some free space. The caller
// frees the description with `ironmap_image_free`.
//
// Returns 0; -EMFILE if too many descriptions exist.
//
// Requires:
// `image` can be written to.
int ironmap_image_new(struct ironmap_image **image);

// Frees a description. An image that was built stays. Returns 0; -EBADF; -EBUSY while the image is being built.
int ironmap_image_free(struct ironmap_image *image);

// Sets the size of the image in bytes. Size 0 stands for the smallest size that holds its content.
//
// Returns 0; -EBADF; -EINVAL if the image was built already, or for NULL; -EBUSY while another thread is in a call on the description.
int ironmap_image_size(struct ironmap_image *image,
                       uint64_t bytes);

// Adds a directory, or a tar archive, which may be compressed by gzip or zstd. The path "-" is standard input.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_image_add_path(struct ironmap_image *image, const char *path);

// Adds an image of a container: an OCI layout, or the output of `docker save`. The whiteouts of its layers are applied.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_image_add_oci(struct ironmap_image *image, const char *path);

// Adds the entries of a directory of another volume. The directory begins with a slash.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// The texts end with a zero byte.
int ironmap_image_add_volume(struct ironmap_image *image, const char *location, const char *directory);

// Adds a tar archive whose bytes a function provides. The archive may be compressed by gzip or zstd.
//
// `ironmap_image_build` calls `read` with `arg`, in any thread, but in one thread at a time. `read` stores up to the requested number of
// bytes. It returns their number, 0 at the end of the archive, or an errno with a minus sign. `name` stands for the archive in messages.
// If `layer` is not 0, the archive is a layer of a container image, whose whiteouts hide files of earlier sources.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// `name` ends with a zero byte. `read` can be called with `arg` until the description was built or freed.
int ironmap_image_add_tar(struct ironmap_image *image,
                          const char *name,
                          ptrdiff_t (*read)(void *arg, void *memory, size_t len),
                          void *arg,
                          int layer);

// Adds a file with this content, mode and owner. It replaces a file of the sources.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// `path` ends with a zero byte, and `content` can be read for `len` bytes.
int ironmap_image_inject(struct ironmap_image *image,
                         const char *path,
                         const void *content,
                         size_t len,
                         uint32_t mode,
                         uint32_t uid,
                         uint32_t gid);

// Sets the label of the volume: at most 16 bytes.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// `label` ends with a zero byte.
int ironmap_image_label(struct ironmap_image *image, const char *label);

// Sets the UUID of the volume: 16 bytes. Without this call it is random.
//
// Returns the same as `ironmap_image_size`.
//
// Requires:
// `uuid` can be read for 16 bytes.
int ironmap_image_uuid(struct ironmap_image *image, const uint8_t *uuid);

// Sets the latest time that the image may contain, in seconds since 1970. It replaces all later times. So two builds of the same content
// have the same bytes. The UUID then depends on the content.
//
// Returns the same as `ironmap_image_size`.
int ironmap_image_source_date_epoch(struct ironmap_image *image,
                                    int64_t seconds);

// Sets the owner of all files.
//
// Returns the same as `ironmap_image_size`.
int ironmap_image_owner(struct ironmap_image *image, uint32_t uid, uint32_t gid);

// Makes a new image in the format qcow2 with compressed clusters. `method` is "deflate" or "zstd". The location of the build is then
// "qcow2:FILE", and FILE does not exist.
//
// Returns the same as `ironmap_image_size`, and -EINVAL for another method.
//
// Requires:
// `method` ends with a zero byte.
int ironmap_image_compress(struct ironmap_image *image,
                           const char *method);

// Replaces an existing file system, if `force` is not 0. A member of an MD array or of an LVM volume group is never replaced: the build
// returns -EBUSY.
//
// Returns the same as `ironmap_image_size`.
int ironmap_image_force(struct ironmap_image *image,
                        int force);

// Builds the image at a location: the path of an image file, which appears when it is complete, or a device.
//
// `progress` may be NULL. Otherwise it is called with `arg` and the numbers of copied files and bytes, in any thread, but in one thread at
// a time. If `progress` returns a value other than 0, the build ends with -EINTR, and the image does not appear. After the call, the
// description can only be freed.
//
// Returns 0; -EEXIST if the location contains a file system and `ironmap_image_force` was not called; -ENOSPC if the content does not fit;
// -ENOENT, -EACCES, -EIO; -EAGAIN if no thread can be started; -EINVAL for a wrong description; the errors of `ironmap_image_size`.
//
// Requires:
// `location` ends with a zero byte, and `progress` can be called with `arg`.
int ironmap_image_build(struct ironmap_image *image,
                        const char *location,
                        int (*progress)(void *arg, uint64_t files, uint64_t bytes),
                        void *arg);

// Copies a file of the volume at a location to a path of the host. A directory is copied with everything below it. `progress` is used as
// in `ironmap_image_build`. Only root can set the owners of the copies, and can copy device nodes.
//
// Returns 0; the error of the first file that cannot be copied, after all others were copied; -EINTR if `progress` has ended the call;
// -EAGAIN if no thread can be started.
//
// Requires:
// The texts end with a zero byte, and `progress` can be called with `arg`.
int ironmap_image_extract(const char *location,
                          const char *from,
                          const char *to,
                          int (*progress)(void *arg, uint64_t files, uint64_t bytes),
                          void *arg);

// Makes the ext4 volume at a location larger or smaller. An image file is extended or truncated to the new size. With `bytes` 0, the volume
// gets the smallest size that holds its content. `size` may be NULL; otherwise the call stores the new size in bytes there.
//
// Returns 0; -EINVAL for a size that the volume cannot have; -ENOSPC for a size that its content does not fit into; -EUCLEAN for a damaged
// volume; -EBUSY if it is in use; -EIO.
//
// Requires:
// `location` ends with a zero byte, and `size` is NULL or can be written to.
int ironmap_image_resize(const char *location,
                         uint64_t bytes,
                         uint64_t *size);

// Stores the attributes of the file at a path. With AT_SYMLINK_NOFOLLOW in `flags`, a symbolic link is not followed. `size` is
// `sizeof(struct ironmap_stat)`.
//
// Returns 0; -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG as for `stat(2)`; -EUCLEAN, -EIO; -EBADF; -EINVAL for NULL or other flags.
//
// Requires:
// `path` ends with a zero byte, and `stat` can be written to for `size` bytes.
int ironmap_stat(struct ironmap_volume *volume,
                 const char *path,
                 int flags,
                 struct ironmap_stat *stat,
                 size_t size);

// Copies the target of a symbolic link, without a zero byte at its end. With `len` 0 only the length is returned.
//
// Returns the length; -ERANGE if the memory is too short; -EINVAL if the file is not a symbolic link; and the errors of `ironmap_stat`.
//
// Requires:
// `path` ends with a zero byte, and `target` can be written to for `len` bytes.
ptrdiff_t ironmap_readlink(struct ironmap_volume *volume,
                           const char *path,
                           char *target,
                           size_t len);

// Creates a directory. No umask is applied to `mode`.
//
// Returns 0; -EEXIST; -EROFS for a volume that is open for reading; -ENOSPC, -EDQUOT; -EMLINK; and the errors of `ironmap_stat`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_mkdir(struct ironmap_volume *volume,
                  const char *path,
                  uint32_t mode);

// Removes a name of a file that is not a directory.
//
// Returns 0; -EISDIR; -EROFS; and the errors of `ironmap_stat`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_unlink(struct ironmap_volume *volume, const char *path);

// Removes an empty directory.
//
// Returns 0; -ENOTEMPTY, -ENOTDIR; -EROFS; and the errors of `ironmap_stat`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_rmdir(struct ironmap_volume *volume, const char *path);

// Renames a file. `flags` are those of `renameat2(2)`: 0, RENAME_NOREPLACE, RENAME_EXCHANGE or RENAME_WHITEOUT.
//
// Returns 0; -EEXIST with RENAME_NOREPLACE; -ENOTEMPTY, -EISDIR, -ENOTDIR; -EXDEV; -EINVAL for a directory that would move into itself;
// -EROFS; and the errors of `ironmap_stat`.
//
// Requires:
// The paths end with a zero byte.
int ironmap_rename(struct ironmap_volume *volume,
                   const char *from,
                   const char *to,
                   uint32_t flags);

// Creates a symbolic link at `path` with this target. Returns 0; -EEXIST; -EROFS; -ENOSPC, -EDQUOT; and the errors of
// `ironmap_stat`.
//
// Requires:
// The texts end with a zero byte.
int ironmap_symlink(struct ironmap_volume *volume, const char *target, const char *path);

// Gives a file an additional name (a hard link). A symbolic link is not followed. Returns 0; -EEXIST; -EMLINK; -EPERM for a directory;
// -EROFS; -ENOSPC; and the errors of `ironmap_stat`.
//
// Requires:
// The paths end with a zero byte.
int ironmap_link(struct ironmap_volume *volume,
                 const char *original,
                 const char *path);

// Sets the permissions of a file: the lower twelve bits of its mode. Returns 0; -EROFS; and the errors of `ironmap_stat`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_chmod(struct ironmap_volume *volume,
                  const char *path,
                  uint32_t mode);

// Sets the user and the group that own a file. UINT32_MAX leaves the user or the group unchanged. `flags` are 0 or AT_SYMLINK_NOFOLLOW.
// Returns the same as `ironmap_chmod`.
//
// Requires:
// `path` ends with a zero byte.
int ironmap_chown(struct ironmap_volume *volume,
                  const char *path,
                  uint32_t uid,
                  uint32_t gid,
                  int flags);

// Sets the times of a file. NULL leaves a time unchanged. `flags` are 0 or AT_SYMLINK_NOFOLLOW. Returns the same as `ironmap_chmod`;
// -EINVAL for nanoseconds outside their range.
//
// Requires:
// `path` ends with a zero byte, and the times are NULL or can be read.
int ironmap_set_times(struct ironmap_volume *volume,
                      const char *path,
                      const struct ironmap_time *accessed,
                      const struct ironmap_time *modified,
                      int flags);

// Copies the value of an extended attribute, such as "user.comment". With `len` 0 only its length is returned. `flags` are 0 or
// AT_SYMLINK_NOFOLLOW.
//
// Returns the length; -ENODATA if the attribute does not exist; -ERANGE if the memory is too short, or the name is empty or longer than 255
// bytes; and the errors of `ironmap_stat`.
//
// Requires:
// The texts end with a zero byte, and `value` can be written to for `len` bytes.
ptrdiff_t ironmap_getxattr(struct ironmap_volume *volume,
                           const char *path,
                           const char *name,
                           void *value,
                           size_t len,
                           int flags);

// Copies the names of all extended attributes, each with a zero byte at its end. With `len` 0 only the length is returned.
//
// Returns the length; and the errors of `ironmap_getxattr`.
//
// Requires:
// `path` ends with a zero byte, and `names` can be written to for `len` bytes.
ptrdiff_t ironmap_listxattr(struct ironmap_volume *volume,
                            const char *path,
                            char *names,
                            size_t len,
                            int flags);

// Sets an extended attribute. `how` is 0, XATTR_CREATE or XATTR_REPLACE; `flags` are 0 or AT_SYMLINK_NOFOLLOW.
//
// Returns 0; -EEXIST with XATTR_CREATE; -ENODATA with XATTR_REPLACE; -E2BIG, -ERANGE as for `setxattr(2)`; -EOPNOTSUPP if the name has no known
// prefix; -ENOSPC; -EROFS; and the errors of `ironmap_stat`.
//
// Requires:
// The texts end with a zero byte, and `value` can be read for `len` bytes.
int ironmap_setxattr(struct ironmap_volume *volume,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t len,
                     int how,
                     int flags);

// Removes an extended attribute. Returns 0; -ENODATA; -ERANGE as for `removexattr(2)`; -EOPNOTSUPP if the name has no known prefix; -EROFS; and
// the errors of `ironmap_stat`.
//
// Requires:
// The texts end with a zero byte.
int ironmap_removexattr(struct ironmap_volume *volume,
                        const char *path,
                        const char *name,
                        int flags);

// Starts a pool of threads for the files of a volume.
//
// `threads` is the number of threads, and `depth` the number of requests that each has in flight; 0 lets the library choose. Any thread may
// use the pool and its files. The caller frees the pool with `ironmap_pool_free`.
//
// Returns 0; -EBADF for a closed volume; -EMFILE, -ENOMEM, -EAGAIN if descriptors, memory or threads are exhausted.
//
// Requires:
// `pool` can be written to.
int ironmap_volume_pool(struct ironmap_volume *volume,
                        uint32_t threads,
                        uint32_t depth,
                        struct ironmap_pool **pool);

// Starts a pool of threads for the files of the host. In all other respects, the call is like `ironmap_volume_pool`.
//
// Returns the same as `ironmap_volume_pool`.
//
// Requires:
// `pool` can be written to.
int ironmap_host_pool(struct ironmap_host *host, uint32_t threads, uint32_t depth, struct ironmap_pool **pool);

// Ends the threads of a pool. Returns 0; -EBUSY while a file of the pool is open; -EBADF.
int ironmap_pool_free(struct ironmap_pool *pool);

// Opens a file on a pool. `flags` and `mode` are those of `ironmap_open`. The caller closes the file with `ironmap_pool_close`.
//
// Returns the same as `ironmap_open`.
//
// Requires:
// `path` ends with a zero byte, and `file` can be written to.
int ironmap_pool_open(struct ironmap_pool *pool,
                      const char *path,
                      int flags,
                      uint32_t mode,
                      struct ironmap_pool_file **file);

// Closes a file of a pool. Calls of other threads on it are carried out. Returns 0 or -EBADF.
int ironmap_pool_close(struct ironmap_pool_file *file);

// Reads up to `len` bytes from position `pos`, and waits. Returns the same as `ironmap_pread`; any thread may call it.
//
// Requires:
// `memory` can be written to for `len` bytes.
ptrdiff_t ironmap_pool_pread(struct ironmap_pool_file *file, void *memory, size_t len, uint64_t pos);

// Writes `len` bytes at position `pos`, and waits. Returns the same as `ironmap_pwrite`; any thread may call it, but not while it has
// requests in flight on the same file (section WAITS of ironmap(3)).
//
// Requires:
// `memory` can be read for `len` bytes.
ptrdiff_t ironmap_pool_pwrite(struct ironmap_pool_file *file,
                              const void *memory,
                              size_t len,
                              uint64_t pos);

// Writes all `len` bytes at the end of the file, and waits. Returns the same as `ironmap_append`; any thread may call it.
//
// Requires:
// `memory` can be read for `len` bytes, and `pos` is NULL or can be written to.
int ironmap_pool_append(struct ironmap_pool_file *file,
                        const void *memory,
                        size_t len,
                        uint64_t *pos);

// Reads several ranges of a file, and waits for all of them. The reads are in flight together. The call sets the `result` of each. `size` is
// `sizeof(struct ironmap_pool_read)`. Any thread may call it.
//
// Returns 0 if the reads have results; -EBADF; -EINVAL for another `size` or a NULL `reads`.
//
// Requires:
// `reads` points to `count` structures, whose memory can be written to and does not overlap.
int ironmap_pool_read_many(struct ironmap_pool_file *file,
                           struct ironmap_pool_read *reads,
                           size_t count,
                           size_t size);

// Reads up to `len` bytes from position `pos` of a file of a pool, and waits. The read uses a queue of the calling thread. So no other
// thread takes part, and no data are copied. The queue must belong to the volume or host of the pool.
//
// Returns the same as `ironmap_pread`; -EINVAL for a queue of another volume or host.
//
// Requires:
// `memory` can be written to for `len` bytes.
ptrdiff_t ironmap_pread_on(struct ironmap_queue *queue,
                           struct ironmap_pool_file *file,
                           void *memory,
                           size_t len,
                           uint64_t pos);

// Reads several ranges of a file of a pool through a queue of the calling thread, and waits for all of them. In all other respects, the
// call works in the same way as `ironmap_pool_read_many` and `ironmap_pread_on`.
//
// Returns 0 if the reads have results; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EINVAL for another `size` or a NULL `reads`.
//
// Requires:
// `reads` points to `count` structures, whose memory can be written to and does not overlap.
int ironmap_read_many_on(struct ironmap_queue *queue,
                         struct ironmap_pool_file *file,
                         struct ironmap_pool_read *reads,
                         size_t count,
                         size_t size);

// Stores the report on how a host file of a pool is read, in the same way as `ironmap_file_report`. Any thread may call it.
//
// Requires:
// `report` can be written to for `size` bytes.
int ironmap_pool_file_report(struct ironmap_pool_file *file,
                             struct ironmap_host_report *report,
                             size_t size);

// Makes all completed writes of the file durable, with all metadata. If `data_only` is not 0, only the metadata that a read needs are made
// durable. Returns the same as `ironmap_fsync`; any thread may call it.
int ironmap_pool_fsync(struct ironmap_pool_file *file,
                       int data_only);

// The size of the file in bytes, or -EBADF. Any thread may call it.
int64_t ironmap_pool_size(struct ironmap_pool_file *file);

// Makes a queue for the files of a volume, for the calling thread.
//
// `depth` is the number of requests that the device has at a time, at most 4096; 0 stands for 256. The caller frees the queue in the same
// thread with `ironmap_queue_free`. If the thread ends before that, no thread can use or free the queue, and the volume cannot be closed.
//
// Returns 0; -EBADF for a closed volume; -EMFILE if too many queues or descriptors are open; -ENOMEM.
//
// Requires:
// `queue` can be written to.
int ironmap_volume_queue(struct ironmap_volume *volume,
                         uint32_t depth,
                         struct ironmap_queue **queue);

// Makes a queue for the files of the host, for the calling thread. In all other respects, the call is like `ironmap_volume_queue`.
//
// Returns the same as `ironmap_volume_queue`.
//
// Requires:
// `queue` can be written to.
int ironmap_host_queue(struct ironmap_host *host,
                       uint32_t depth,
                       struct ironmap_queue **queue);

// Frees a queue, closes the files that were opened on it, and waits for its requests. Their completions are lost.
//
// Returns 0; -EBADF; -EPERM in any thread other than that of the queue; -EBUSY in a signal handler that has interrupted a call on the queue.
// -EIO and other errnos if the kernel no longer serves the queue: the queue is then freed, but the memory of its requests must stay
// valid until the process ends.
int ironmap_queue_free(struct ironmap_queue *queue);

// Reads several ranges of one or more files of a queue, and waits for all of them. As many reads are in flight together as the depth of
// the queue allows.
//
// The call sets the `result` of each read to the number of bytes, or to an errno with a minus sign. The number is smaller than `len` only
// at the end of the file. `size` is `sizeof(struct ironmap_read)`.
//
// Returns 0 if the reads have results; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EINVAL for another `size` or a NULL `reads`. If
// the call returns an error, it does not change the results.
//
// Requires:
// `reads` points to `count` structures. The memory of each read can be written to, and the memory of two reads does not overlap.
int ironmap_read_many(struct ironmap_queue *queue,
                      struct ironmap_read *reads,
                      size_t count,
                      size_t size);

// Submits a read of `len` bytes from position `pos` into memory. `ironmap_reap` returns its completion with the pointer `user`.
//
// `flags` are 0 or RWF_NOWAIT and RWF_HIPRI of `preadv2`. This call, or a later call on the queue, sends the request to the device.
//
// If the queue is full, the call waits for the device.
//
// Returns 0; -EAGAIN with RWF_NOWAIT if the call would have to wait; -EINVAL, -EIO and other errors of `ironmap_pread`. After an error there
// is no completion. After 0 the completion may have any of these errors.
//
// Requires:
// The memory stays valid, and nothing else accesses it, until `ironmap_reap` has returned the completion or `ironmap_queue_free` has
// returned.
int ironmap_submit_read(struct ironmap_file *file,
                        void *memory,
                        size_t len,
                        uint64_t pos,
                        int flags,
                        void *user);

// Submits a write of `len` bytes at position `pos`. `flags` may also have RWF_DSYNC, RWF_SYNC and RWF_ATOMIC. In all other respects, the
// call is like `ironmap_submit_read`.
//
// Returns the same as `ironmap_submit_read`; -EROFS, -ENOSPC and other errors of `ironmap_pwrite`.
//
// Requires:
// The memory stays valid, and nothing changes it, until `ironmap_reap` has returned the completion or `ironmap_queue_free` has returned.
int ironmap_submit_write(struct ironmap_file *file,
                         const void *memory,
                         size_t len,
                         uint64_t pos,
                         int flags,
                         void *user);

// Submits a read of `len` bytes from position `pos` into a buffer, at the byte `offset` of the buffer. In all other respects, the call is
// like `ironmap_submit_read`. The buffer may be freed while the request is in flight: its memory is then released after the request.
//
// Returns the same as `ironmap_submit_read`; -EBADF for a buffer that was freed; -ERANGE for bytes outside the buffer.
//
// Requires:
// Nothing else accesses these bytes of the buffer until the request is complete.
int ironmap_submit_read_buffer(struct ironmap_file *file,
                               struct ironmap_buffer *buffer,
                               size_t offset,
                               size_t len,
                               uint64_t pos,
                               int flags,
                               void *user);

// Submits a write of `len` bytes at position `pos`. The data begin at the byte `offset` of the buffer. In all other respects, the call is
// like `ironmap_submit_write` and `ironmap_submit_read_buffer`.
//
// Returns the same as `ironmap_submit_write` and `ironmap_submit_read_buffer`.
//
// Requires:
// Nothing changes these bytes of the buffer until the request is complete.
int ironmap_submit_write_buffer(struct ironmap_file *file,
                                struct ironmap_buffer *buffer,
                                size_t offset,
                                size_t len,
                                uint64_t pos,
                                int flags,
                                void *user);

// Sends the submitted requests to the device, and waits until `min` of them are complete, or all of them if there are fewer.
//
// Returns 0; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EIO and other errnos if the kernel no longer serves the queue.
int ironmap_wait(struct ironmap_queue *queue,
                 size_t min);

// Sends the submitted requests to the device, and returns up to `max` completions. The call does not wait for the device.
//
// If the call returns `max` completions, there may be more. Otherwise the descriptor of `ironmap_queue_fd` becomes readable at the next
// completion. The completions are in the order in which the device completed them. `size` is `sizeof(struct ironmap_completion)`.
//
// Returns the number of completions; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EINVAL for another `size` or a NULL `completions`.
//
// Requires:
// `completions` has place for `max` structures.
ptrdiff_t ironmap_reap(struct ironmap_queue *queue,
                       struct ironmap_completion *completions,
                       size_t max,
                       size_t size);

// The number of requests that were submitted to a queue and not reaped, or -EBADF, -EPERM or -EBUSY.
ptrdiff_t ironmap_outstanding(struct ironmap_queue *queue);

// A descriptor that becomes readable when a request completes, for `poll` and `epoll`. It belongs to the queue, which closes it.
//
// When the descriptor is readable, the caller calls `ironmap_reap` until it returns fewer completions than it has place for. The caller
// does not read the descriptor. After it has submitted requests, the caller calls `ironmap_reap` before it waits. This call sends the
// requests. It also returns the requests that are complete without the device, such as a read of a hole, because these do not make the
// descriptor readable. io_uring may interrupt a wait with EINTR, also without a signal. The caller then waits again.
//
// Returns the descriptor; -EBADF, -EPERM or -EBUSY as for any call on a queue; -EOPNOTSUPP if the engine polls its device; -EMFILE.
int ironmap_queue_fd(struct ironmap_queue *queue);

// Registers a buffer with the kernel. So the kernel need not pin the pages of the buffer for each request of this queue. A queue can
// register one buffer of at most 1 GiB. A request whose memory is in the buffer uses registered memory, even if it was submitted by
// address.
//
// The buffer may be freed before the queue: its memory is released after the queue was freed.
//
// Returns 0; -EBADF; -EPERM or -EBUSY as for any call on a queue; -EBUSY for a second buffer, or for a buffer that is registered with another
// queue; -ENOMEM if the process may not lock so much memory; -EINVAL for an empty or too long buffer.
int ironmap_queue_register(struct ironmap_queue *queue,
                           struct ironmap_buffer *buffer);

// Opens a volume: an ext4 or XFS file system that is not mounted.
//
// `location` is a path of an image or a device, or a location such as "disk.img@p1" (a partition), "disk.img@vg/root" (a logical volume of
// LVM), "qcow2:disk.qcow2@p1" or "nbd://server/export". `engine` is the name of
// the I/O engine, such as "io_uring" or "psync"; NULL lets the library choose. `options` may be NULL, which opens the volume for reading;
// `size` is `sizeof(struct ironmap_volume_options)`. The caller closes the volume with `ironmap_volume_close`. Any thread may call it.
//
// Returns 0; -ENOENT, -EACCES; -EBUSY if another program uses the volume; -EINVAL for a location without a file system or with wrong
// syntax; -EOPNOTSUPP for a feature that the library does not support; -EUCLEAN for a damaged volume; -E2BIG for an option that this
// version does not know; -EIO.
//
// Requires:
// The texts end with a zero byte, `options` can be read for `size` bytes, and `volume` can be written to.
int ironmap_volume_open(const char *location,
                        const char *engine,
                        const struct ironmap_volume_options *options,
                        size_t size,
                        struct ironmap_volume **volume);

// Closes a volume. Its changes are committed and written to their final places.
//
// Returns 0; -EBUSY while a queue, a pool or a directory of the volume is open, or another thread is in a call on it: the volume stays
// open then; -EBADF; -EIO, -EROFS and other errnos if the changes cannot be written: the volume is then closed, and is
// recovered when it is next opened.
int ironmap_volume_close(struct ironmap_volume *volume);

// Makes all changes of a volume durable. A volume that was opened for reading has none. Returns 0; -EBADF; -EIO and other errnos of the device; -EROFS if an earlier error has made the volume
// read-only.
int ironmap_volume_sync(struct ironmap_volume *volume);

// Stores the properties of a volume. `size` is `sizeof(struct ironmap_volume_info)`. Returns 0, -EBADF, or -EINVAL for NULL.
//
// Requires:
// `info` can be written to for `size` bytes.
int ironmap_volume_info(struct ironmap_volume *volume,
                        struct ironmap_volume_info *info,
                        size_t size);

// Copies a notice of a volume: a setting that could not be applied as requested, or a fault of the device that was ignored. `index` counts
// from 0. The text has no zero byte at its end; with `len` 0 only its length is returned.
//
// Returns the length of the text; -ENODATA if no notice has this index; -ERANGE if the memory is too short; -EBADF.
//
// Requires:
// `text` can be written to for `len` bytes.
ptrdiff_t ironmap_volume_notice(struct ironmap_volume *volume,
                                size_t index,
                                char *text,
                                size_t len);

// Opens the host: the files of the mounted file systems. The library reads these files directly from their devices.
//
// `engine` is the name of the I/O engine, or NULL. The caller closes the host with `ironmap_host_close`. Any thread may call it.
//
// Returns 0; -EINVAL for an unknown engine; -EOPNOTSUPP for an engine that cannot be used here.
//
// Requires:
// `engine` ends with a zero byte, and `host` can be written to.
int ironmap_host_open(const char *engine,
                      struct ironmap_host **host);

// Closes a host. Returns 0; -EBUSY while a queue or a pool of the host is open; -EBADF.
int ironmap_host_close(struct ironmap_host *host);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* IRONMAP_H */
