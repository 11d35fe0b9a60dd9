// The declarations that the parts of the model test share: see model.c.
#ifndef MODEL_H
#define MODEL_H

#include <errno.h>
#include <ironmap.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATH = 96,
    LARGEST = 384 * 1024, // The largest size of a file of the model.
    XATTRS = 3,
    VALUE = 200,
};

// Numbers that depend on the seed.
struct numbers {
    uint64_t state;
};
uint64_t any(struct numbers *numbers);
size_t below(struct numbers *numbers, size_t limit);
bool one_in(struct numbers *numbers, size_t count);
void fill(struct numbers *numbers, void *memory, size_t len);

// Prints the place, the text and the last failure of the library in this thread, and ends the program.
_Noreturn void fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Ends the program unless the call returns this value.
#define is(call, expected)                                                                           \
    do {                                                                                             \
        long long is_result = (long long)(call), is_expected = (long long)(expected);                \
        if (is_result != is_expected)                                                                \
            fail(__FILE__, __LINE__, "%s is %lld, not %lld", #call, is_result, is_expected);         \
    } while (0)

#define holds(condition)                                                                             \
    do {                                                                                             \
        if (!(condition))                                                                            \
            fail(__FILE__, __LINE__, "%s is wrong", #condition);                                     \
    } while (0)

void *memory_of(size_t len); // As malloc, and ends the program if there is no memory.

// The types of handles, in the order of `handles` below.
enum type { VOLUME, HOST, QUEUE, FILE_, BUFFER, DIRECTORY, POOL, POOL_FILE, IMAGE, TYPES };

// A function of the library with a handle of a type and otherwise valid arguments.
struct call {
    const char *name;
    enum type type;
    long (*run)(void *handle);
};
extern const struct call calls[];
extern const size_t calls_count;

// One open handle of each type.
struct handles {
    void *of[TYPES];
};
void open_handles(struct handles *handles, struct ironmap_volume *volume, const char *path, const char *host_file);
void close_handles(struct handles *handles);

// The model: an inode, and a name of an inode.
enum kind { REGULAR, FOLDER, LINK };
struct inode {
    enum kind kind;
    unsigned char *bytes; // LARGEST bytes, of a regular file.
    size_t size;
    unsigned names, opens;
    uint32_t mode;
    char target[PATH];
    struct {
        bool is_set;
        size_t len;
        unsigned char value[VALUE];
    } xattrs[XATTRS];
};
struct name {
    char path[PATH]; // It begins with a slash. The root has no slash after it: it is "".
    struct inode *inode;
};
struct tree {
    struct name names[48];
    size_t count;
};
extern const char *const xattr_names[XATTRS];
void tree_init(struct tree *tree);
void tree_free(struct tree *tree);
struct name *tree_find(struct tree *tree, const char *path);
struct inode *tree_add(struct tree *tree, const char *path, enum kind kind, uint32_t mode);
void tree_drop(struct tree *tree, struct name *name);
void inode_drop(struct inode *inode); // Frees an inode that has no name and is not open.
void tree_compare(struct tree *tree, struct ironmap_volume *volume);
void random_path(struct tree *tree, struct numbers *numbers, char path[PATH]);

// The parts. Each leaves the volume open, and the tree equal to its content.
struct run {
    struct ironmap_volume *volume;
    const char *image;
    const char *host_file; // A file of the host whose content is `i * 7 + i / 4096` at byte i.
    struct numbers numbers;
    size_t steps;
    struct tree tree;
};
void run_wrong_uses(struct run *run);
void run_names(struct run *run, size_t steps);
void run_files(struct run *run);
void run_buffers(struct run *run);
void run_threads(struct run *run);
void run_forks(struct run *run);
void run_signals(struct run *run);
void run_ends(struct run *run);

unsigned char host_byte(size_t position);

#endif
