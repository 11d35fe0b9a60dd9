// Wrong uses, each with the errno that the header promises.
#include "model.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { KIND_BITS = 6, GENERATION = 32 };

// Every call of a type refuses the handle.
static void refused(enum type type, void *handle, int expected, const char *what) {
    for (size_t i = 0; i < calls_count; i++) {
        if (calls[i].type != type)
            continue;
        long result = calls[i].run(handle);
        if (result != -expected)
            fail(__FILE__, __LINE__, "%s on %s is %ld, not %d", calls[i].name, what, result, -expected);
    }
    if (type == BUFFER && expected == EBADF)
        holds(ironmap_buffer_data(handle) == NULL);
}

static void *number(uint64_t bits) {
    return (void *)(uintptr_t)bits;
}

// Numbers that no call has returned for this type. Other types may have them.
static void forged(struct numbers *numbers, enum type type, void *handle) {
    uint64_t open = (uintptr_t)handle;
    for (uint64_t kind = 0; kind < 1 << KIND_BITS; kind++)
        if (kind != (open & ((1 << KIND_BITS) - 1)))
            refused(type, number((open >> KIND_BITS << KIND_BITS) | kind), EBADF, "a handle with another kind");
    for (int i = 0; i < 8; i++) {
        uint64_t mask = (any(numbers) | 1) << GENERATION;
        refused(type, number(open ^ mask), EBADF, "a handle of another generation");
        refused(type, number(any(numbers) | 1ull << 63), EBADF, "a random number");
    }
}

static void refused_as_other_type(const struct handles *handles) {
    for (int type = 0; type < TYPES; type++) {
        refused(type, NULL, EBADF, "NULL");
        refused(type, number(UINTPTR_MAX), EBADF, "the largest number");
        for (int other = 0; other < TYPES; other++)
            if (other != type)
                refused(type, handles->of[other], EBADF, "a handle of another type");
    }
}

static void *in_other_thread(void *arg) {
    const struct handles *handles = arg;
    refused(QUEUE, handles->of[QUEUE], EPERM, "the queue of another thread");
    refused(FILE_, handles->of[FILE_], EPERM, "the file of another thread");
    return NULL;
}

static int silent_progress(void *arg, uint64_t files, uint64_t bytes) {
    (void)arg, (void)files, (void)bytes;
    return 1;
}

// Wrong arguments with valid handles.
static void wrong_open(const struct handles *h) {
    struct ironmap_file *file = number(1);
    struct ironmap_volume *volume = number(1);
    struct ironmap_volume_options options = {.write = 2};
    struct {
        struct ironmap_volume_options known;
        uint64_t later;
    } newer = {.later = 1};
    is(ironmap_open(h->of[QUEUE], "/missing", O_RDONLY, 0, &file), -ENOENT);
    holds(file == NULL);
    is(ironmap_open(h->of[QUEUE], "/missing/name", O_RDWR | O_CREAT, 0600, &file), -ENOENT);
    is(ironmap_open(h->of[QUEUE], "/file of calls", O_RDWR | O_CREAT | O_EXCL, 0600, &file), -EEXIST);
    is(ironmap_open(h->of[QUEUE], "/file of calls/name", O_RDONLY, 0, &file), -ENOTDIR);
    is(ironmap_open(h->of[QUEUE], "/", O_RDWR, 0, &file), -EISDIR);
    is(ironmap_open(h->of[QUEUE], "/loop", O_RDONLY, 0, &file), -ELOOP);
    is(ironmap_open(h->of[QUEUE], "/file of calls", O_ACCMODE, 0, &file), -EINVAL);
    is(ironmap_open(h->of[QUEUE], "/file of calls", O_PATH, 0, &file), -EINVAL);
    is(ironmap_open(h->of[QUEUE], "/file of calls", O_TMPFILE | O_RDWR, 0, &file), -EINVAL);
    is(ironmap_open(h->of[QUEUE], NULL, O_RDONLY, 0, &file), -EINVAL);
    is(ironmap_open(h->of[QUEUE], "/file of calls", O_RDONLY, 0, NULL), -EINVAL);
    is(ironmap_volume_open("/missing image", NULL, NULL, 0, &volume), -ENOENT);
    holds(volume == NULL);
    is(ironmap_volume_open("/dev/null", NULL, NULL, 0, &volume), -EINVAL);
    is(ironmap_volume_open(NULL, NULL, NULL, 0, &volume), -EINVAL);
    is(ironmap_volume_open("/missing image", "no engine", NULL, 0, &volume), -EINVAL);
    is(ironmap_volume_open("/missing image", NULL, &options, sizeof options, &volume), -EINVAL);
    is(ironmap_volume_open("/missing image", NULL, &newer.known, sizeof newer, &volume), -E2BIG);
    is(ironmap_host_open("no engine", (void *)&volume), -EINVAL);
    is(ironmap_volume_open("/missing image", NULL, NULL, 0, NULL), -EINVAL);
}

static void wrong_transfers(const struct handles *h) {
    static char memory[16];
    struct iovec iov = {memory, sizeof memory}, null = {NULL, 1};
    void *file = h->of[FILE_];
    is(ironmap_pread(file, NULL, 1, 0), -EFAULT);
    is(ironmap_pread(file, NULL, 0, 0), 0);
    is(ironmap_pread(file, memory, sizeof memory, UINT64_MAX), 0);
    is(ironmap_pread(file, memory, SIZE_MAX, 0), -EINVAL);
    is(ironmap_pwrite(file, NULL, 1, 0), -EFAULT);
    is(ironmap_pwrite(file, memory, 1, UINT64_MAX), -EFBIG);
    is(ironmap_pwrite(file, memory, 1, 1ull << 62), -EFBIG);
    is(ironmap_preadv(file, NULL, 1, 0, 0), -EINVAL);
    is(ironmap_preadv(file, NULL, 0, 0, 0), 0);
    is(ironmap_preadv(file, &iov, -1, 0, 0), -EINVAL);
    is(ironmap_preadv(file, &iov, 1025, 0, 0), -EINVAL);
    is(ironmap_preadv(file, &null, 1, 0, 0), -EFAULT);
    is(ironmap_preadv(file, &iov, 1, 0, 1 << 20), -EINVAL);
    is(ironmap_preadv(file, &iov, 1, 0, 2 /* RWF_DSYNC */), -EINVAL);
    is(ironmap_pwritev(file, &iov, 1, 0, 1 << 20), -EINVAL);
    is(ironmap_append(file, NULL, 1, NULL), -EFAULT);
    is(ironmap_ftruncate(file, UINT64_MAX), -EFBIG);
    is(ironmap_fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, 1), -EOPNOTSUPP);
    is(ironmap_fallocate(file, FALLOC_FL_UNSHARE_RANGE, 0, 1), -EOPNOTSUPP);
    is(ironmap_fallocate(file, 1 << 20, 0, 1), -EOPNOTSUPP);
    is(ironmap_fallocate(file, 0, 0, 0), -EINVAL);
    is(ironmap_fallocate(file, 0, UINT64_MAX, 2), -EINVAL);
    is(ironmap_fallocate(file, 0, 1ull << 50, 4096), -EFBIG);
    is(ironmap_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 1, 4096), -EINVAL);
    is(ironmap_seek(file, 1ull << 40, SEEK_DATA), -ENXIO);
    is(ironmap_seek(file, 0, SEEK_SET), -EINVAL);
    is(ironmap_fstat(file, NULL, sizeof(struct ironmap_stat)), -EINVAL);
    is(ironmap_file_report(file, (void *)memory, sizeof memory), -EINVAL);
}

static void wrong_requests(const struct handles *h) {
    static char memory[16];
    void *file = h->of[FILE_], *queue = h->of[QUEUE], *buffer = h->of[BUFFER];
    struct ironmap_read read = {file, memory, 1, 0, 7};
    struct ironmap_pool_read pool_read = {memory, 1, 0, 7};
    struct ironmap_completion completion;
    struct ironmap_buffer *other;
    is(ironmap_submit_read(file, NULL, 1, 0, 0, NULL), -EFAULT);
    is(ironmap_submit_read(file, memory, SIZE_MAX, 0, 0, NULL), -EFAULT);
    is(ironmap_submit_read(file, memory, 1, 0, 1 << 20, NULL), -EINVAL);
    is(ironmap_submit_read(file, memory, 1, 0, 2 /* RWF_DSYNC */, NULL), -EINVAL);
    is(ironmap_submit_write(file, NULL, 1, 0, 0, NULL), -EFAULT);
    is(ironmap_submit_read_buffer(file, buffer, 8192, 1, 0, 0, NULL), -ERANGE);
    is(ironmap_submit_read_buffer(file, buffer, SIZE_MAX, 1, 0, 0, NULL), -ERANGE);
    is(ironmap_submit_read_buffer(file, buffer, 1, SIZE_MAX, 0, 0, NULL), -ERANGE);
    is(ironmap_submit_write_buffer(file, buffer, 1, 8192, 0, 0, NULL), -ERANGE);
    // The errors of a request that was accepted are those of its completion.
    is(ironmap_submit_write(file, memory, 1, UINT64_MAX, 0, memory), 0);
    is(ironmap_wait(queue, 1), 0);
    is(ironmap_reap(queue, &completion, 1, sizeof completion), 1);
    holds(completion.user == memory && completion.result == -EFBIG);
    is(ironmap_outstanding(queue), 0);
    is(ironmap_wait(queue, 1000), 0);
    // A call without space for completions also sends the requests.
    is(ironmap_pwrite(file, memory, 1, 0), 1);
    struct pollfd ready = {ironmap_queue_fd(queue), POLLIN, 0};
    is(ironmap_submit_read(file, memory, 1, 0, 0, memory), 0);
    is(ironmap_reap(queue, NULL, 0, sizeof completion), 0);
    is(poll(&ready, 1, 10000), 1);
    is(ironmap_reap(queue, &completion, 1, sizeof completion), 1);
    is(ironmap_reap(queue, NULL, 1, sizeof(struct ironmap_completion)), -EINVAL);
    is(ironmap_reap(queue, (void *)memory, 1, 1), -EINVAL);
    is(ironmap_read_many(queue, &read, 1, 1), -EINVAL);
    is(ironmap_read_many(queue, NULL, 1, sizeof read), -EINVAL);
    is(ironmap_pool_read_many(h->of[POOL_FILE], &pool_read, 1, 1), -EINVAL);
    is(ironmap_pool_read_many(h->of[POOL_FILE], NULL, 1, sizeof pool_read), -EINVAL);
    holds(read.result == 7 && pool_read.result == 7);
    is(ironmap_pool_pread(h->of[POOL_FILE], NULL, 1, 0), -EFAULT);
    is(ironmap_pool_pwrite(h->of[POOL_FILE], NULL, 1, 0), -EFAULT);
    is(ironmap_buffer_wrap(NULL, 1, NULL, NULL, &other), -EFAULT);
    is(ironmap_buffer_wrap(memory, SIZE_MAX, NULL, NULL, &other), -EINVAL);
    is(ironmap_buffer_wrap(memory, 1, NULL, NULL, NULL), -EINVAL);
    is(ironmap_buffer_new(SIZE_MAX, &other), -ENOMEM);
    is(ironmap_buffer_new((size_t)1 << 60, &other), -ENOMEM);
}

static void wrong_names(const struct handles *h) {
    char text[8], longer[300];
    struct ironmap_stat stat;
    struct ironmap_time late = {.nanoseconds = 1000000000};
    struct ironmap_directory *directory;
    void *v = h->of[VOLUME];
    memset(longer, 'n', sizeof longer - 1), longer[0] = '/', longer[sizeof longer - 1] = 0;
    is(ironmap_stat(v, "/missing", 0, &stat, sizeof stat), -ENOENT);
    is(ironmap_stat(v, "/file of calls/name", 0, &stat, sizeof stat), -ENOTDIR);
    is(ironmap_stat(v, "/loop", 0, &stat, sizeof stat), -ELOOP);
    is(ironmap_stat(v, longer, 0, &stat, sizeof stat), -ENAMETOOLONG);
    is(ironmap_stat(v, NULL, 0, &stat, sizeof stat), -EINVAL);
    is(ironmap_stat(v, "/", 1, &stat, sizeof stat), -EINVAL);
    is(ironmap_stat(v, "/", 0, NULL, sizeof stat), -EINVAL);
    is(ironmap_opendir(v, "/file of calls", &directory), -ENOTDIR);
    is(ironmap_readdir(h->of[DIRECTORY], NULL, 0), -EINVAL);
    is(ironmap_readlink(v, "/", text, sizeof text), -EINVAL);
    is(ironmap_readlink(v, "/loop", text, 1), -ERANGE);
    is(ironmap_readlink(v, "/loop", NULL, 0), 4);
    is(ironmap_mkdir(v, "/file of calls", 0700), -EEXIST);
    is(ironmap_mkdir(v, "/", 0700), -EEXIST);
    is(ironmap_mkdir(v, "/missing/name", 0700), -ENOENT);
    is(ironmap_mkdir(v, longer, 0700), -ENAMETOOLONG);
    is(ironmap_mkdir(v, "/missing/.", 0700), -ENOENT);
    is(ironmap_mkdir(v, "/lost+found/.", 0700), -EEXIST);
    is(ironmap_unlink(v, "/lost+found"), -EISDIR);
    is(ironmap_rmdir(v, "/file of calls"), -ENOTDIR);
    is(ironmap_rename(v, "/missing", "/name", 0), -ENOENT);
    is(ironmap_rename(v, "/loop", "/file of calls", 1 /* RENAME_NOREPLACE */), -EEXIST);
    is(ironmap_rename(v, "/loop", "/name", 1 << 10), -EINVAL);
    is(ironmap_rename(v, "/loop", "/name/", 1 /* RENAME_NOREPLACE */), -ENOTDIR);
    is(ironmap_rename(v, "/lost+found", "/loop/", 2 /* RENAME_EXCHANGE */), -ENOTDIR);
    is(ironmap_rename(v, "/lost+found/.", "/loop", 2 /* RENAME_EXCHANGE */), -EINVAL);
    is(ironmap_rename(v, "/loop", NULL, 0), -EINVAL);
    is(ironmap_rename(v, "/lost+found", "/lost+found/name", 0), -EINVAL);
    is(ironmap_symlink(v, "target", "/loop"), -EEXIST);
    is(ironmap_symlink(v, NULL, "/name"), -EINVAL);
    is(ironmap_link(v, "/lost+found", "/name"), -EPERM);
    is(ironmap_link(v, "/loop", "/file of calls"), -EEXIST);
    is(ironmap_chown(v, "/loop", 0, 0, 1), -EINVAL);
    is(ironmap_set_times(v, "/", &late, NULL, 0), -EINVAL);
    is(ironmap_getxattr(v, "/", "user.missing", text, sizeof text, 0), -ENODATA);
    is(ironmap_getxattr(v, "/", "prefix.name", text, sizeof text, 0), -EOPNOTSUPP);
    is(ironmap_removexattr(v, "/", "user.missing", 0), -ENODATA);
    is(ironmap_removexattr(v, "/", "prefix.name", 0), -EOPNOTSUPP);
    is(ironmap_setxattr(v, "/", longer, "value", 5, 0, 0), -ERANGE);
    is(ironmap_setxattr(v, "/", "", "value", 5, 0, 0), -ERANGE);
    is(ironmap_getxattr(v, "/", "", text, sizeof text, 0), -ERANGE);
    is(ironmap_setxattr(v, "/", "user.x", "value", 5, XATTR_REPLACE, 0), -ENODATA);
    is(ironmap_setxattr(v, "/", "user.x", "value", 5, 3, 0), -EINVAL);
    is(ironmap_setxattr(v, "/", "user.x", NULL, 5, 0, 0), -EFAULT);
    is(ironmap_setxattr(v, "/", "user.x", longer, (size_t)1 << 20, 0, 0), -E2BIG);
    is(ironmap_setxattr(v, "/", "prefix.name", "value", 5, 0, 0), -EOPNOTSUPP);
    is(ironmap_setxattr(v, "/", "user.x", "value", 5, XATTR_CREATE, 0), 0);
    is(ironmap_setxattr(v, "/", "user.x", "value", 5, XATTR_CREATE, 0), -EEXIST);
    is(ironmap_getxattr(v, "/", "user.x", text, 4, 0), -ERANGE);
    is(ironmap_getxattr(v, "/", "user.x", NULL, 0, 0), 5);
    is(ironmap_removexattr(v, "/", "user.x", 0), 0);
    is(ironmap_volume_notice(v, 1000, text, sizeof text), -ENODATA);
    is(ironmap_volume_info(v, NULL, 0), -EINVAL);
}

// A wrong step leaves the description unchanged.
static void wrong_images(const struct handles *h) {
    void *image = h->of[IMAGE];
    is(ironmap_image_add_path(image, NULL), -EINVAL);
    is(ironmap_image_add_tar(image, "tar", NULL, NULL, 0), -EINVAL);
    is(ironmap_image_inject(image, "/f", NULL, 1, 0600, 0, 0), -EFAULT);
    is(ironmap_image_uuid(image, NULL), -EFAULT);
    is(ironmap_image_compress(image, "lzma"), -EINVAL);
    is(ironmap_image_size(image, 1 << 20), 0);
    is(ironmap_image_build(image, "/missing/image", silent_progress, NULL), -ENOENT);
    is(ironmap_image_size(image, 1 << 20), -EINVAL);
    is(ironmap_image_build(image, "/missing/image", NULL, NULL), -EINVAL);
    is(ironmap_image_extract("/missing image", "/", "/missing", NULL, NULL), -ENOENT);
    is(ironmap_image_resize("/missing image", 0, NULL), -ENOENT);
}

// A disk with a volume and its hash tree. The tree matches the data until a byte changes. A wrong description makes no disk.
static void disks(void) {
    char path[] = "/var/tmp/ironmap-disk-XXXXXX", data[64], hash[64];
    const char *parts[] = {"root:4M:fs=ext4,label=root", "root-verity:1M"};
    const char *unknown[] = {"root:4M:colour=red"};
    const struct ironmap_disk_options wrong = {.reserved = 1}, forced = {.force = 1, .seed = "seed", .sector_size = 512};
    const struct ironmap_verity_options blocks = {.data_block_size = 1000};
    struct ironmap_disk_part made[2];
    struct ironmap_verity_info tree;
    int fd = mkstemp(path);
    holds(fd >= 0);
    close(fd); // The library refuses a file that is open for writing.
    snprintf(data, sizeof data, "%s@p1", path);
    snprintf(hash, sizeof hash, "%s@p2", path);
    is(ironmap_disk_build(path, NULL, 1, NULL, 0, NULL, 0, NULL, NULL), -EINVAL);
    is(ironmap_disk_build(path, parts, 0, NULL, 0, NULL, 0, NULL, NULL), -EINVAL);
    is(ironmap_disk_build(path, unknown, 1, NULL, 0, NULL, 0, NULL, NULL), -EINVAL);
    is(ironmap_disk_build(path, parts, 2, &wrong, sizeof wrong, NULL, 0, NULL, NULL), -EINVAL);
    is(ironmap_disk_build(path, parts, 2, NULL, 0, made, sizeof *made, NULL, NULL), 0);
    holds(made[0].length == 4 << 20 && strcmp(made[0].content, "ext4") == 0 && made[0].has_root_hash == 1);
    holds(made[1].length == 1 << 20 && strcmp(made[1].content, "verity") == 0);
    is(ironmap_disk_build(path, parts, 2, NULL, 0, NULL, 0, NULL, NULL), -EEXIST);
    is(ironmap_disk_build(path, parts, 2, &forced, sizeof forced, made, sizeof *made, NULL, NULL), 0);
    is(ironmap_verity_check(data, hash, made[0].root_hash), 0);
    is(ironmap_verity_check(data, hash, made[1].root_hash), -EUCLEAN);
    is(ironmap_verity_check(data, NULL, made[0].root_hash), -EINVAL);
    is(ironmap_verity_make(data, hash, NULL, 0, &tree, sizeof tree), -EEXIST);
    is(ironmap_verity_make(data, hash, &blocks, sizeof blocks, &tree, sizeof tree), -EINVAL);
    is(ironmap_verity_make(data, hash, NULL, 0, NULL, 0), -EINVAL);
    fd = open(path, O_WRONLY);
    holds(pwrite(fd, "x", 1, (off_t)made[0].start + 5000) == 1);
    close(fd);
    is(ironmap_verity_check(data, hash, made[0].root_hash), -EUCLEAN);
    unlink(path);
    is(ironmap_verity_make("/missing", NULL, NULL, 0, &tree, sizeof tree), -ENOENT);
}

// The reason of a failure is kept for the thread, and for each handle until it is closed.
static void failures(const struct handles *h) {
    struct ironmap_failure failure, short_one;
    struct ironmap_buffer *buffer;
    is(ironmap_pread(h->of[FILE_], NULL, 1, 0), -EFAULT);
    is(ironmap_failure(h->of[FILE_], &failure, sizeof failure), 0);
    is(failure.error, EFAULT);
    is(ironmap_volume_close(h->of[VOLUME]), -EBUSY);
    is(ironmap_failure(h->of[VOLUME], &failure, sizeof failure), 0);
    is(failure.error, EBUSY);
    holds(strcmp(failure.kind, "Busy") == 0 && failure.message[0] != 0);
    is(ironmap_host_close(h->of[HOST]), -EBUSY);
    is(ironmap_failure(h->of[HOST], &failure, sizeof failure), 0);
    is(ironmap_pool_free(h->of[POOL]), -EBUSY);
    is(ironmap_failure(h->of[POOL], &failure, sizeof failure), 0);
    is(ironmap_failure(NULL, &failure, sizeof failure), 0);
    is(failure.error, EBUSY);
    is(ironmap_failure(NULL, NULL, sizeof failure), -EINVAL);
    memset(&short_one, 0x55, sizeof short_one);
    is(ironmap_failure(NULL, &short_one, sizeof(int)), 0);
    holds(short_one.error == EBUSY && short_one.kind[0] == 0x55);
    is(ironmap_buffer_new(1, &buffer), 0);
    is(ironmap_failure(buffer, &failure, sizeof failure), -ENODATA);
    is(ironmap_buffer_free(buffer), 0);
    is(ironmap_buffer_free(buffer), -EBADF);
    is(ironmap_failure(buffer, &failure, sizeof failure), -ENODATA);
}

void run_wrong_uses(struct run *run) {
    struct handles handles;
    pthread_t thread;
    // Before a table has an object, and after many objects were closed.
    for (int type = 0; type < TYPES; type++)
        refused(type, NULL, EBADF, "NULL");
    is(ironmap_symlink(run->volume, "loop", "/loop"), 0);
    open_handles(&handles, run->volume, "/file of calls", run->host_file);
    refused_as_other_type(&handles);
    for (int type = 0; type < TYPES; type++)
        forged(&run->numbers, type, handles.of[type]);
    is(pthread_create(&thread, NULL, in_other_thread, &handles), 0);
    is(pthread_join(thread, NULL), 0);
    wrong_open(&handles);
    wrong_transfers(&handles);
    wrong_requests(&handles);
    wrong_names(&handles);
    failures(&handles);
    wrong_images(&handles);
    disks();
    close_handles(&handles);
    for (int type = HOST; type < TYPES; type++) {
        refused(type, handles.of[type], EBADF, "a closed handle");
        forged(&run->numbers, type, handles.of[type]);
    }
    // A queue that is freed closes its files.
    open_handles(&handles, run->volume, "/file of calls", run->host_file);
    void *file = handles.of[FILE_];
    is(ironmap_open(handles.of[QUEUE], "/file of calls", O_RDWR, 0, (void *)&handles.of[FILE_]), 0);
    is(ironmap_close(handles.of[FILE_]), 0);
    is(ironmap_queue_free(handles.of[QUEUE]), 0);
    refused(FILE_, file, EBADF, "a file of a freed queue");
    is(ironmap_volume_queue(run->volume, 8, (void *)&handles.of[QUEUE]), 0);
    refused(FILE_, file, EBADF, "a file of a freed queue");
    is(ironmap_open(handles.of[QUEUE], "/file of calls", O_RDWR, 0, (void *)&handles.of[FILE_]), 0);
    close_handles(&handles);
    is(ironmap_unlink(run->volume, "/file of calls"), 0);
    is(ironmap_unlink(run->volume, "/loop"), 0);
}
