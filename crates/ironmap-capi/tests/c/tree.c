// The model of a volume's names, and its comparison with the volume.
#include "model.h"

#include <fcntl.h>
#include <sys/stat.h>

const char *const xattr_names[XATTRS] = {"user.a", "user.a longer name", "trusted.b"};

void tree_init(struct tree *tree) {
    tree->count = 0;
    tree_add(tree, "", FOLDER, 0755);
    tree_add(tree, "/lost+found", FOLDER, 0700);
}

void inode_drop(struct inode *inode) {
    if (inode->names == 0 && inode->opens == 0) {
        free(inode->bytes);
        free(inode);
    }
}

void tree_drop(struct tree *tree, struct name *name) {
    struct inode *inode = name->inode;
    *name = tree->names[--tree->count];
    inode->names--;
    inode_drop(inode);
}

void tree_free(struct tree *tree) {
    while (tree->count > 0)
        tree_drop(tree, &tree->names[0]);
}

struct name *tree_find(struct tree *tree, const char *path) {
    for (size_t i = 0; i < tree->count; i++)
        if (strcmp(tree->names[i].path, path) == 0)
            return &tree->names[i];
    return NULL;
}

struct inode *tree_add(struct tree *tree, const char *path, enum kind kind, uint32_t mode) {
    struct inode *inode = memory_of(sizeof *inode);
    memset(inode, 0, sizeof *inode);
    inode->kind = kind, inode->mode = mode, inode->names = 1;
    if (kind == REGULAR)
        inode->bytes = memset(memory_of(LARGEST), 0, LARGEST);
    holds(tree->count < sizeof tree->names / sizeof *tree->names);
    struct name *name = &tree->names[tree->count++];
    snprintf(name->path, sizeof name->path, "%s", path);
    name->inode = inode;
    return inode;
}

// A path whose directory exists. The path itself may or may not exist.
void random_path(struct tree *tree, struct numbers *numbers, char path[PATH]) {
    struct name *parent;
    do
        parent = &tree->names[below(numbers, tree->count)];
    while (parent->inode->kind != FOLDER || strlen(parent->path) > PATH - 16);
    snprintf(path, PATH, "%.*s/name %c", PATH - 16, parent->path, (int)('a' + below(numbers, 10)));
}

static void compare_content(struct ironmap_queue *queue, const struct name *name) {
    struct ironmap_file *file;
    unsigned char *bytes = memory_of(LARGEST + 1);
    is(ironmap_open(queue, name->path, O_RDONLY, 0, &file), 0);
    is(ironmap_pread(file, bytes, LARGEST + 1, 0), name->inode->size);
    for (size_t i = 0; i < name->inode->size; i++)
        if (bytes[i] != name->inode->bytes[i])
            fail(__FILE__, __LINE__, "byte %zu of %s is %d, not %d", i, name->path, bytes[i], name->inode->bytes[i]);
    is(ironmap_close(file), 0);
    free(bytes);
}

static void compare_xattrs(struct ironmap_volume *volume, const struct name *name, const char *path) {
    unsigned char value[VALUE];
    char names[256];
    ptrdiff_t length = 0;
    for (int i = 0; i < XATTRS; i++) {
        ptrdiff_t found = ironmap_getxattr(volume, path, xattr_names[i], value, sizeof value, AT_SYMLINK_NOFOLLOW);
        if (!name->inode->xattrs[i].is_set) {
            is(found, -ENODATA);
            continue;
        }
        is(found, name->inode->xattrs[i].len);
        holds(memcmp(value, name->inode->xattrs[i].value, name->inode->xattrs[i].len) == 0);
        length += (ptrdiff_t)strlen(xattr_names[i]) + 1;
    }
    is(ironmap_listxattr(volume, path, names, sizeof names, AT_SYMLINK_NOFOLLOW), length);
}

static unsigned links_of(struct tree *tree, const struct name *name) {
    unsigned links = name->inode->kind == FOLDER ? 2 : name->inode->names;
    size_t len = strlen(name->path);
    for (size_t i = 0; name->inode->kind == FOLDER && i < tree->count; i++) {
        const struct name *other = &tree->names[i];
        bool is_below = strncmp(other->path, name->path, len) == 0 && other->path[len] == '/';
        links += is_below && other->inode->kind == FOLDER && !strchr(other->path + len + 1, '/');
    }
    return links;
}

static void compare_name(struct tree *tree, struct ironmap_volume *volume, const struct name *name) {
    static const uint32_t types[] = {S_IFREG, S_IFDIR, S_IFLNK};
    const char *path = name->path[0] ? name->path : "/";
    struct ironmap_stat stat;
    is(ironmap_stat(volume, path, AT_SYMLINK_NOFOLLOW, &stat, sizeof stat), 0);
    is(stat.mode & S_IFMT, types[name->inode->kind]);
    is(stat.links, links_of(tree, name));
    if (name->inode->kind != LINK)
        is(stat.mode & 07777, name->inode->mode);
    if (name->inode->kind == REGULAR)
        is(stat.size, name->inode->size);
    if (name->inode->kind == LINK) {
        char target[PATH];
        is(ironmap_readlink(volume, path, target, sizeof target), strlen(name->inode->target));
        holds(memcmp(target, name->inode->target, strlen(name->inode->target)) == 0);
    } else {
        compare_xattrs(volume, name, path);
    }
}

// The number of names in a directory and below it. Each must be in the model.
static size_t count_names(struct tree *tree, struct ironmap_volume *volume, const char *path) {
    struct ironmap_directory *directory;
    struct ironmap_dirent entry;
    size_t count = 0;
    int more;
    is(ironmap_opendir(volume, path[0] ? path : "/", &directory), 0);
    while ((more = ironmap_readdir(directory, &entry, sizeof entry)) == 1) {
        char child[PATH + 300];
        snprintf(child, sizeof child, "%s/%s", path, entry.name);
        is(entry.len, strlen(entry.name));
        if (!tree_find(tree, child))
            fail(__FILE__, __LINE__, "%s is in the volume, and not in the model", child);
        count += 1 + (S_ISDIR(entry.kind) ? count_names(tree, volume, child) : 0);
    }
    is(more, 0);
    is(ironmap_readdir(directory, &entry, sizeof entry), 0);
    is(ironmap_closedir(directory), 0);
    return count;
}

void tree_compare(struct tree *tree, struct ironmap_volume *volume) {
    struct ironmap_queue *queue;
    struct ironmap_check_report report;
    is(count_names(tree, volume, "") + 1, tree->count);
    is(ironmap_volume_queue(volume, 4, &queue), 0);
    for (size_t i = 0; i < tree->count; i++) {
        compare_name(tree, volume, &tree->names[i]);
        if (tree->names[i].inode->kind == REGULAR)
            compare_content(queue, &tree->names[i]);
    }
    is(ironmap_queue_free(queue), 0);
    is(ironmap_check(volume, NULL, NULL, &report, sizeof report), 0);
}
