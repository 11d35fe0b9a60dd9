// Random changes of directories, names and extended attributes.
#include "model.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum { NOREPLACE = 1, EXCHANGE = 2, MOST = 40 };

static bool is_below(const char *path, const char *directory) {
    size_t len = strlen(directory);
    return strncmp(path, directory, len) == 0 && path[len] == '/';
}

static bool has_entries(struct tree *tree, const char *path) {
    for (size_t i = 0; i < tree->count; i++)
        if (is_below(tree->names[i].path, path))
            return true;
    return false;
}

static void make(struct run *run, const char *path) {
    struct ironmap_volume *volume = run->volume;
    bool exists = tree_find(&run->tree, path) != NULL;
    uint32_t mode = (uint32_t)below(&run->numbers, 01000);
    if (!exists && run->tree.count >= MOST)
        return;
    if (one_in(&run->numbers, 2)) {
        is(ironmap_mkdir(volume, path, mode | S_IFREG), exists ? -EEXIST : 0);
        if (!exists)
            tree_add(&run->tree, path, FOLDER, mode);
    } else {
        char target[PATH];
        random_path(&run->tree, &run->numbers, target);
        is(ironmap_symlink(volume, target, path), exists ? -EEXIST : 0);
        if (!exists)
            strcpy(tree_add(&run->tree, path, LINK, 0777)->target, target);
    }
}

static void create(struct run *run, const char *path) {
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    if (tree_find(&run->tree, path) || run->tree.count >= MOST)
        return;
    is(ironmap_volume_queue(run->volume, 0, &queue), 0);
    is(ironmap_open(queue, path, O_WRONLY | O_CREAT | O_EXCL, 0640, &file), 0);
    is(ironmap_queue_free(queue), 0);
    tree_add(&run->tree, path, REGULAR, 0640);
}

static void remove_name(struct run *run, const char *path) {
    struct name *name = tree_find(&run->tree, path);
    bool is_folder = name && name->inode->kind == FOLDER;
    int unlinked = !name ? -ENOENT : is_folder ? -EISDIR : 0;
    int removed = !name ? -ENOENT : !is_folder ? -ENOTDIR : has_entries(&run->tree, path) ? -ENOTEMPTY : 0;
    if (one_in(&run->numbers, 2)) {
        is(ironmap_unlink(run->volume, path), unlinked);
        if (unlinked == 0)
            tree_drop(&run->tree, name);
    } else {
        is(ironmap_rmdir(run->volume, path), removed);
        if (removed == 0)
            tree_drop(&run->tree, name);
    }
}

static void link_name(struct run *run, const char *from, const char *to) {
    struct name *original = tree_find(&run->tree, from);
    bool exists = tree_find(&run->tree, to) != NULL;
    int expected = !original ? -ENOENT : exists ? -EEXIST : original->inode->kind == FOLDER ? -EPERM : 0;
    if (expected == 0 && run->tree.count >= MOST)
        return;
    is(ironmap_link(run->volume, from, to), expected);
    if (expected == 0) {
        struct name *name = &run->tree.names[run->tree.count++];
        strcpy(name->path, to);
        name->inode = original->inode;
        name->inode->names++;
    }
}

static int rename_result(struct tree *tree, const char *from, const char *to, uint32_t flags) {
    struct name *old = tree_find(tree, from), *new = tree_find(tree, to);
    if (!old || (flags == EXCHANGE && !new))
        return -ENOENT;
    if (flags == NOREPLACE && new)
        return -EEXIST;
    if (is_below(to, from))
        return -EINVAL;
    if (is_below(from, to))
        return flags == EXCHANGE ? -EINVAL : -ENOTEMPTY;
    if (flags == EXCHANGE || !new || old->inode == new->inode)
        return 0;
    if (old->inode->kind == FOLDER && new->inode->kind != FOLDER)
        return -ENOTDIR;
    if (old->inode->kind != FOLDER && new->inode->kind == FOLDER)
        return -EISDIR;
    return has_entries(tree, to) ? -ENOTEMPTY : 0;
}

// Renames what is below a directory in the model.
static bool move_below(struct tree *tree, const char *from, const char *to, bool really) {
    size_t len = strlen(from);
    for (size_t i = 0; i < tree->count; i++) {
        struct name *name = &tree->names[i];
        char path[2 * PATH];
        if (strcmp(name->path, from) != 0 && !is_below(name->path, from))
            continue;
        snprintf(path, sizeof path, "%s%s", to, name->path + len);
        if (strlen(path) >= PATH)
            return false;
        if (really)
            strcpy(name->path, path);
    }
    return true;
}

static void rename_name(struct run *run, const char *from, const char *to) {
    static const uint32_t all[] = {0, NOREPLACE, EXCHANGE};
    uint32_t flags = all[below(&run->numbers, 3)];
    struct tree *tree = &run->tree;
    if (!move_below(tree, from, to, false) || !move_below(tree, to, from, false))
        return;
    int expected = rename_result(tree, from, to, flags);
    is(ironmap_rename(run->volume, from, to, flags), expected);
    struct name *old = tree_find(tree, from), *new = tree_find(tree, to);
    if (expected != 0 || strcmp(from, to) == 0 || (flags == 0 && new && old->inode == new->inode))
        return;
    if (flags == EXCHANGE)
        move_below(tree, to, "?", true);
    else if (new)
        tree_drop(tree, new);
    move_below(tree, from, to, true);
    move_below(tree, "?", from, true);
}

static void change_xattr(struct run *run, const char *path) {
    struct name *name = tree_find(&run->tree, path);
    size_t i = below(&run->numbers, XATTRS), len = below(&run->numbers, VALUE + 1);
    int how = (int)below(&run->numbers, 3);
    unsigned char value[VALUE];
    if (name && name->inode->kind == LINK)
        return;
    bool is_set = name && name->inode->xattrs[i].is_set;
    if (one_in(&run->numbers, 3)) {
        is(ironmap_removexattr(run->volume, path, xattr_names[i], 0), !name ? -ENOENT : is_set ? 0 : -ENODATA);
        if (name)
            name->inode->xattrs[i].is_set = false;
        return;
    }
    fill(&run->numbers, value, len);
    int expected = !name ? -ENOENT
                   : how == XATTR_CREATE && is_set ? -EEXIST
                   : how == XATTR_REPLACE && !is_set ? -ENODATA
                   : 0;
    is(ironmap_setxattr(run->volume, path, xattr_names[i], value, len, how, AT_SYMLINK_NOFOLLOW), expected);
    if (expected == 0) {
        name->inode->xattrs[i].is_set = true;
        name->inode->xattrs[i].len = len;
        memcpy(name->inode->xattrs[i].value, value, len);
    }
}

static void change_attributes(struct run *run, const char *path) {
    struct name *name = tree_find(&run->tree, path);
    // Without the set-ID bits: a write removes them from a file, and a new directory inherits the one of its parent's group.
    uint32_t mode = (uint32_t)below(&run->numbers, 02000), owner = (uint32_t)any(&run->numbers) >> 1;
    struct ironmap_time time = {(int64_t)below(&run->numbers, 1ull << 33), 999999999, 0};
    struct ironmap_stat stat;
    if (name && name->inode->kind == LINK)
        return;
    int expected = name ? 0 : -ENOENT;
    is(ironmap_chown(run->volume, path, owner, UINT32_MAX, 0), expected);
    is(ironmap_chmod(run->volume, path, mode | S_IFDIR), expected);
    is(ironmap_set_times(run->volume, path, NULL, &time, AT_SYMLINK_NOFOLLOW), expected);
    is(ironmap_stat(run->volume, path, 0, &stat, sizeof stat), expected);
    if (!name)
        return;
    name->inode->mode = mode;
    holds((stat.mode & 07777) == mode && stat.uid == owner && stat.gid == 0);
    holds(stat.modified.seconds == time.seconds && stat.modified.nanoseconds == time.nanoseconds);
}

void run_names(struct run *run, size_t steps) {
    for (size_t step = 0; step < steps; step++) {
        char path[PATH], other[PATH];
        random_path(&run->tree, &run->numbers, path);
        random_path(&run->tree, &run->numbers, other);
        switch (below(&run->numbers, 8)) {
        case 0: create(run, path); break;
        case 1: case 2: make(run, path); break;
        case 3: remove_name(run, path); break;
        case 4: link_name(run, path, other); break;
        case 5: rename_name(run, path, other); break;
        case 6: change_xattr(run, path); break;
        default: change_attributes(run, path); break;
        }
        if (one_in(&run->numbers, 500))
            tree_compare(&run->tree, run->volume);
    }
}
