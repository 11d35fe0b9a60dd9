// The calls of libironmap for Go. Each function calls the function of the library that its name names.
//
// A handle is a number in Go, not a pointer. The bits of a handle can equal an address in Go's heap, and the garbage collector ends the
// program if it finds a pointer to free memory there.
//
// Each function that fails stores the reason before it returns to Go. After the return, the goroutine may run in another thread, and
// another goroutine may have failed with the same handle.

#include <fcntl.h>
#include <ironmap.h>

static inline ptrdiff_t im_done(ptrdiff_t result, struct ironmap_failure *why) {
    if (result < 0) ironmap_failure(NULL, why, sizeof *why);
    return result;
}

static inline int im_volume_open(const char *location, const char *engine, const struct ironmap_volume_options *options,
                                 uintptr_t *volume, struct ironmap_failure *why) {
    struct ironmap_volume *opened = NULL;
    int result = ironmap_volume_open(location, engine, options, sizeof *options, &opened);
    *volume = (uintptr_t)opened;
    return im_done(result, why);
}

static inline int im_volume_close(uintptr_t volume, struct ironmap_failure *why) {
    return im_done(ironmap_volume_close((struct ironmap_volume *)volume), why);
}

static inline int im_volume_pool(uintptr_t volume, uint32_t threads, uint32_t depth, uintptr_t *pool, struct ironmap_failure *why) {
    struct ironmap_pool *started = NULL;
    int result = ironmap_volume_pool((struct ironmap_volume *)volume, threads, depth, &started);
    *pool = (uintptr_t)started;
    return im_done(result, why);
}

static inline int im_pool_free(uintptr_t pool, struct ironmap_failure *why) {
    return im_done(ironmap_pool_free((struct ironmap_pool *)pool), why);
}

static inline int im_pool_open(uintptr_t pool, const char *path, uintptr_t *file, struct ironmap_failure *why) {
    struct ironmap_pool_file *opened = NULL;
    int result = ironmap_pool_open((struct ironmap_pool *)pool, path, O_RDONLY, 0, &opened);
    *file = (uintptr_t)opened;
    return im_done(result, why);
}

static inline int im_pool_close(uintptr_t file, struct ironmap_failure *why) {
    return im_done(ironmap_pool_close((struct ironmap_pool_file *)file), why);
}

static inline ptrdiff_t im_pool_pread(uintptr_t file, void *memory, size_t len, uint64_t pos, struct ironmap_failure *why) {
    return im_done(ironmap_pool_pread((struct ironmap_pool_file *)file, memory, len, pos), why);
}

static inline int im_stat(uintptr_t volume, const char *path, int flags, struct ironmap_stat *stat, struct ironmap_failure *why) {
    return im_done(ironmap_stat((struct ironmap_volume *)volume, path, flags, stat, sizeof *stat), why);
}

static inline ptrdiff_t im_readlink(uintptr_t volume, const char *path, char *target, size_t len, struct ironmap_failure *why) {
    return im_done(ironmap_readlink((struct ironmap_volume *)volume, path, target, len), why);
}

static inline int im_opendir(uintptr_t volume, const char *path, uintptr_t *directory, struct ironmap_failure *why) {
    struct ironmap_directory *opened = NULL;
    int result = ironmap_opendir((struct ironmap_volume *)volume, path, &opened);
    *directory = (uintptr_t)opened;
    return im_done(result, why);
}

// Stores up to `max` entries, and returns their number, which is smaller than `max` only at the end.
static inline ptrdiff_t im_readdir(uintptr_t directory, struct ironmap_dirent *entries, size_t max, struct ironmap_failure *why) {
    for (size_t count = 0; count < max; count++) {
        int result = ironmap_readdir((struct ironmap_directory *)directory, &entries[count], sizeof *entries);
        if (result < 0) return im_done(result, why);
        if (result == 0) return (ptrdiff_t)count;
    }
    return (ptrdiff_t)max;
}

static inline int im_closedir(uintptr_t directory, struct ironmap_failure *why) {
    return im_done(ironmap_closedir((struct ironmap_directory *)directory), why);
}

static inline ptrdiff_t im_getxattr(uintptr_t volume, const char *path, const char *name, void *value, size_t len, int flags,
                                    struct ironmap_failure *why) {
    return im_done(ironmap_getxattr((struct ironmap_volume *)volume, path, name, value, len, flags), why);
}

static inline ptrdiff_t im_listxattr(uintptr_t volume, const char *path, char *names, size_t len, int flags,
                                     struct ironmap_failure *why) {
    return im_done(ironmap_listxattr((struct ironmap_volume *)volume, path, names, len, flags), why);
}

// The function of Go that stores a finding in a list.
int ironmapFinding(uintptr_t list, struct ironmap_finding *finding);

static inline int im_found(void *list, const struct ironmap_finding *finding) {
    return ironmapFinding((uintptr_t)list, (struct ironmap_finding *)finding);
}

static inline int im_check(uintptr_t volume, uintptr_t list, struct ironmap_check_report *report, struct ironmap_failure *why) {
    return im_done(ironmap_check((struct ironmap_volume *)volume, im_found, (void *)list, report, sizeof *report), why);
}
