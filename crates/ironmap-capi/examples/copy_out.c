// Copies a directory of a volume, and everything below it, to a new directory of the host:
//
//   copy_out VOLUME DIRECTORY TARGET
//
// Regular files, directories and symbolic links are copied, with their permissions. The library's own ironmap_image_extract copies owners,
// times, attributes and holes too.

#define _GNU_SOURCE // for symlink, fchmod and S_IFMT
#include <fcntl.h>
#include <ironmap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4096, PIECE = 1 << 20 };

static struct ironmap_volume *volume;
static struct ironmap_queue *queue;
static unsigned char piece[PIECE];

// Ends the program if a call has failed, and returns its result otherwise.
static ptrdiff_t check(ptrdiff_t result, const char *path) {
    struct ironmap_failure failure;
    if (result >= 0)
        return result;
    if (ironmap_failure(NULL, &failure, sizeof failure) == 0)
        fprintf(stderr, "copy_out: %s: %s\n", path, failure.message);
    exit(1);
}

static void check_host(int succeeded, const char *path) {
    if (!succeeded) {
        perror(path);
        exit(1);
    }
}

static void join(char path[PATH], const char *directory, const char *name) {
    int len = snprintf(path, PATH, "%s/%s", directory, name);
    if (len >= PATH) {
        fprintf(stderr, "copy_out: the path of %s is too long\n", name);
        exit(1);
    }
}

static void copy_file(const char *from, const char *to, mode_t mode) {
    struct ironmap_file *file;
    check(ironmap_open(queue, from, O_RDONLY, 0, &file), from);
    int copy = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
    check_host(copy >= 0, to);
    uint64_t pos = 0;
    for (;;) {
        ptrdiff_t count = check(ironmap_pread(file, piece, PIECE, pos), from);
        if (count == 0)
            break;
        check_host(write(copy, piece, (size_t)count) == count, to);
        pos += (uint64_t)count;
    }
    check_host(fchmod(copy, mode) == 0, to);
    check_host(close(copy) == 0, to);
    check(ironmap_close(file), from);
}

static void copy_link(const char *from, const char *to) {
    char target[PATH];
    ptrdiff_t len = check(ironmap_readlink(volume, from, target, PATH - 1), from);
    target[len] = 0;
    check_host(symlink(target, to) == 0, to);
}

static void copy(const char *from, const char *to);

static void copy_directory(const char *from, const char *to, mode_t mode) {
    struct ironmap_directory *directory;
    struct ironmap_dirent entry;
    char child[PATH], child_copy[PATH];
    check_host(mkdir(to, 0700) == 0, to);
    check(ironmap_opendir(volume, from, &directory), from);
    while (check(ironmap_readdir(directory, &entry, sizeof entry), from) == 1) {
        join(child, strcmp(from, "/") == 0 ? "" : from, entry.name);
        join(child_copy, to, entry.name);
        copy(child, child_copy);
    }
    check(ironmap_closedir(directory), from);
    // The permissions are set last, because they may forbid new names.
    check_host(chmod(to, mode) == 0, to);
}

static void copy(const char *from, const char *to) {
    struct ironmap_stat stat;
    check(ironmap_stat(volume, from, AT_SYMLINK_NOFOLLOW, &stat, sizeof stat), from);
    mode_t mode = stat.mode & 07777;
    switch (stat.mode & S_IFMT) {
    case S_IFREG: copy_file(from, to, mode); break;
    case S_IFDIR: copy_directory(from, to, mode); break;
    case S_IFLNK: copy_link(from, to); break;
    default: fprintf(stderr, "copy_out: %s is left out: it is a device, pipe or socket\n", from);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s VOLUME DIRECTORY TARGET\n", argv[0]);
        return 2;
    }
    check(ironmap_volume_open(argv[1], NULL, NULL, 0, &volume), argv[1]);
    check(ironmap_volume_queue(volume, 0, &queue), argv[1]);
    copy(argv[2], argv[3]);
    check(ironmap_queue_free(queue), argv[1]);
    check(ironmap_volume_close(volume), argv[1]);
    return 0;
}
