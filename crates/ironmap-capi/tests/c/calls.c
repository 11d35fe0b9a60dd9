// The functions of the library that take a handle, each called with valid arguments apart from the handle.
#include "model.h"

#include <fcntl.h>

static char memory[4096];
static char text[256];

static struct iovec iov = {memory, 1};
static struct ironmap_time now;

// The state of `calls` is not kept: a call that succeeds by mistake opens something that leaks, and the test fails anyway.
static void *opened;

#define CALL(name, type, ...)                                                                        \
    static long call_##name(void *h) {                                                               \
        return (long)ironmap_##name(__VA_ARGS__);                                                    \
    }
#define CALLS                                                                                        \
    X(volume_queue, VOLUME, h, 1, (void *)&opened)                                                   \
    X(volume_pool, VOLUME, h, 1, 1, (void *)&opened)                                                 \
    X(volume_sync, VOLUME, h)                                                                        \
    X(volume_info, VOLUME, h, (void *)memory, sizeof(struct ironmap_volume_info))                    \
    X(volume_notice, VOLUME, h, 0, text, sizeof text)                                                \
    X(volume_close, VOLUME, h)                                                                       \
    X(check, VOLUME, h, NULL, NULL, NULL, 0)                                                         \
    X(opendir, VOLUME, h, "/", (void *)&opened)                                                      \
    X(stat, VOLUME, h, "/", 0, (void *)memory, sizeof(struct ironmap_stat))                          \
    X(readlink, VOLUME, h, "/link", text, sizeof text)                                               \
    X(mkdir, VOLUME, h, "/made by a wrong call", 0700)                                               \
    X(unlink, VOLUME, h, "/link")                                                                    \
    X(rmdir, VOLUME, h, "/lost+found")                                                               \
    X(rename, VOLUME, h, "/link", "/renamed by a wrong call", 0)                                     \
    X(symlink, VOLUME, h, "target", "/made by a wrong call")                                         \
    X(link, VOLUME, h, "/link", "/made by a wrong call")                                             \
    X(chmod, VOLUME, h, "/", 0700)                                                                   \
    X(chown, VOLUME, h, "/", 1, 1, 0)                                                                \
    X(set_times, VOLUME, h, "/", &now, &now, 0)                                                      \
    X(getxattr, VOLUME, h, "/", "user.x", text, sizeof text, 0)                                      \
    X(listxattr, VOLUME, h, "/", text, sizeof text, 0)                                               \
    X(setxattr, VOLUME, h, "/", "user.x", text, 1, 0, 0)                                             \
    X(removexattr, VOLUME, h, "/", "user.x", 0)                                                      \
    X(host_queue, HOST, h, 1, (void *)&opened)                                                       \
    X(host_pool, HOST, h, 1, 1, (void *)&opened)                                                     \
    X(host_close, HOST, h)                                                                           \
    X(open, QUEUE, h, "/missing", O_RDONLY, 0, (void *)&opened)                                      \
    X(read_many, QUEUE, h, NULL, 0, sizeof(struct ironmap_read))                                     \
    X(wait, QUEUE, h, 0)                                                                             \
    X(reap, QUEUE, h, (void *)memory, 1, sizeof(struct ironmap_completion))                          \
    X(outstanding, QUEUE, h)                                                                         \
    X(queue_fd, QUEUE, h)                                                                            \
    X(queue_register, QUEUE, h, NULL)                                                                \
    X(queue_free, QUEUE, h)                                                                          \
    X(pread, FILE_, h, memory, 1, 0)                                                                 \
    X(pwrite, FILE_, h, memory, 1, 0)                                                                \
    X(preadv, FILE_, h, &iov, 1, 0, 0)                                                               \
    X(pwritev, FILE_, h, &iov, 1, 0, 0)                                                              \
    X(append, FILE_, h, memory, 1, NULL)                                                             \
    X(fsync, FILE_, h)                                                                               \
    X(fdatasync, FILE_, h)                                                                           \
    X(size, FILE_, h)                                                                                \
    X(fstat, FILE_, h, (void *)memory, sizeof(struct ironmap_stat))                                  \
    X(ftruncate, FILE_, h, 0)                                                                        \
    X(fchmod, FILE_, h, 0600)                                                                        \
    X(fallocate, FILE_, h, 0, 0, 1)                                                                  \
    X(seek, FILE_, h, 0, 3)                                                                          \
    X(file_report, FILE_, h, (void *)memory, sizeof(struct ironmap_host_report))                     \
    X(submit_read, FILE_, h, memory, 1, 0, 0, NULL)                                                  \
    X(submit_write, FILE_, h, memory, 1, 0, 0, NULL)                                                 \
    X(submit_read_buffer, FILE_, h, NULL, 0, 1, 0, 0, NULL)                                          \
    X(submit_write_buffer, FILE_, h, NULL, 0, 1, 0, 0, NULL)                                         \
    X(close, FILE_, h)                                                                               \
    X(buffer_size, BUFFER, h)                                                                        \
    X(buffer_free, BUFFER, h)                                                                        \
    X(readdir, DIRECTORY, h, (void *)memory, sizeof(struct ironmap_dirent))                          \
    X(closedir, DIRECTORY, h)                                                                        \
    X(pool_open, POOL, h, "/missing", O_RDONLY, 0, (void *)&opened)                                  \
    X(pool_free, POOL, h)                                                                            \
    X(pool_pread, POOL_FILE, h, memory, 1, 0)                                                        \
    X(pool_pwrite, POOL_FILE, h, memory, 1, 0)                                                       \
    X(pool_append, POOL_FILE, h, memory, 1, NULL)                                                    \
    X(pool_read_many, POOL_FILE, h, NULL, 0, sizeof(struct ironmap_pool_read))                       \
    X(pool_fsync, POOL_FILE, h, 0)                                                                   \
    X(pool_size, POOL_FILE, h)                                                                       \
    X(pool_close, POOL_FILE, h)                                                                      \
    X(image_size, IMAGE, h, 0)                                                                       \
    X(image_add_path, IMAGE, h, "/missing")                                                          \
    X(image_add_oci, IMAGE, h, "/missing")                                                           \
    X(image_add_volume, IMAGE, h, "/missing", "/")                                                   \
    X(image_inject, IMAGE, h, "/file", memory, 1, 0600, 0, 0)                                        \
    X(image_label, IMAGE, h, "label")                                                                \
    X(image_uuid, IMAGE, h, (const uint8_t *)memory)                                                 \
    X(image_source_date_epoch, IMAGE, h, 0)                                                          \
    X(image_owner, IMAGE, h, 0, 0)                                                                   \
    X(image_force, IMAGE, h, 0)                                                                      \
    X(image_build, IMAGE, h, "/missing/image", NULL, NULL)                                           \
    X(image_free, IMAGE, h)

#define X CALL
CALLS
#undef X

#define X(name, type, ...) {"ironmap_" #name, type, call_##name},
const struct call calls[] = {CALLS};
#undef X
const size_t calls_count = sizeof calls / sizeof *calls;

void open_handles(struct handles *handles, struct ironmap_volume *volume, const char *path, const char *host_file) {
    struct ironmap_host *host;
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    struct ironmap_buffer *buffer;
    struct ironmap_directory *directory;
    struct ironmap_pool *pool;
    struct ironmap_pool_file *pool_file;
    struct ironmap_image *image;
    is(ironmap_host_open(NULL, &host), 0);
    is(ironmap_volume_queue(volume, 8, &queue), 0);
    is(ironmap_open(queue, path, O_RDWR | O_CREAT, 0600, &file), 0);
    is(ironmap_buffer_new(8192, &buffer), 0);
    is(ironmap_opendir(volume, "/", &directory), 0);
    is(ironmap_host_pool(host, 1, 8, &pool), 0);
    is(ironmap_pool_open(pool, host_file, O_RDONLY, 0, &pool_file), 0);
    is(ironmap_image_new(&image), 0);
    *handles = (struct handles){{volume, host, queue, file, buffer, directory, pool, pool_file, image}};
}

void close_handles(struct handles *handles) {
    is(ironmap_image_free(handles->of[IMAGE]), 0);
    is(ironmap_pool_close(handles->of[POOL_FILE]), 0);
    is(ironmap_pool_free(handles->of[POOL]), 0);
    is(ironmap_closedir(handles->of[DIRECTORY]), 0);
    is(ironmap_buffer_free(handles->of[BUFFER]), 0);
    is(ironmap_close(handles->of[FILE_]), 0);
    is(ironmap_queue_free(handles->of[QUEUE]), 0);
    is(ironmap_host_close(handles->of[HOST]), 0);
}
