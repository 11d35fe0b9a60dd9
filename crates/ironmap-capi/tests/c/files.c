// Random calls on files of several queues.
#include "model.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/uio.h>
#include <unistd.h>

enum { QUEUES = 3, FILES = 12, BATCH = 24, BLOCK = 4096 };

struct open_file {
    struct ironmap_file *handle; // NULL if the place is free.
    struct inode *inode;
    size_t queue;
    int flags;
};

struct state {
    struct run *run;
    struct ironmap_queue *queues[QUEUES];
    struct open_file files[FILES];
};

static bool writes(const struct open_file *file) {
    return (file->flags & O_ACCMODE) != O_RDONLY;
}

static size_t shorter(size_t one, size_t other) {
    return one < other ? one : other;
}

// The bytes that a read of the model's content returns.
static size_t readable(const struct inode *inode, size_t pos, size_t len) {
    return pos >= inode->size ? 0 : shorter(len, inode->size - pos);
}

static void resize(struct inode *inode, size_t size) {
    if (size < inode->size)
        memset(inode->bytes + size, 0, inode->size - size);
    inode->size = size;
}

static void write_model(struct inode *inode, const void *bytes, size_t len, size_t pos) {
    memcpy(inode->bytes + pos, bytes, len);
    if (len > 0 && pos + len > inode->size)
        inode->size = pos + len;
}

static size_t random_len(struct numbers *numbers, size_t pos) {
    size_t len = one_in(numbers, 3) ? below(numbers, 64 * 1024) : below(numbers, 3 * BLOCK);
    if (one_in(numbers, 3))
        len = len / BLOCK * BLOCK;
    return shorter(len, LARGEST - pos);
}

static size_t random_pos(struct numbers *numbers) {
    size_t pos = below(numbers, LARGEST);
    return one_in(numbers, 3) ? pos / BLOCK * BLOCK : pos;
}

static void close_one(struct open_file *file) {
    struct ironmap_file *closed = file->handle;
    char byte;
    file->handle = NULL;
    file->inode->opens--;
    inode_drop(file->inode);
    is(ironmap_close(closed), 0);
    is(ironmap_close(closed), -EBADF);
    is(ironmap_pread(closed, &byte, 1, 0), -EBADF);
}

// Frees a queue with its open files, and makes another one.
static void renew_queue(struct state *state, size_t queue) {
    struct ironmap_queue *freed = state->queues[queue];
    struct ironmap_file *closed[FILES];
    size_t count = 0;
    for (size_t i = 0; i < FILES; i++) {
        struct open_file *file = &state->files[i];
        if (!file->handle || file->queue != queue)
            continue;
        closed[count++] = file->handle;
        file->handle = NULL;
        file->inode->opens--;
        inode_drop(file->inode);
    }
    is(ironmap_queue_free(freed), 0);
    is(ironmap_queue_free(freed), -EBADF);
    uint32_t depth = (uint32_t)below(&state->run->numbers, 40);
    is(ironmap_volume_queue(state->run->volume, depth, &state->queues[queue]), 0);
    for (size_t i = 0; i < count; i++)
        is(ironmap_fsync(closed[i]), -EBADF);
}

static void open_one(struct state *state, struct open_file *file) {
    struct numbers *numbers = &state->run->numbers;
    struct tree *tree = &state->run->tree;
    static const int accesses[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR};
    int flags = accesses[below(numbers, 4)], expected = 0;
    char path[PATH];
    random_path(tree, numbers, path);
    if (flags != O_RDONLY) {
        flags |= one_in(numbers, 2) ? O_CREAT : 0;
        flags |= (flags & O_CREAT) && one_in(numbers, 3) ? O_EXCL : 0;
        flags |= one_in(numbers, 5) ? O_TRUNC : 0;
        flags |= one_in(numbers, 5) ? O_APPEND : 0;
        flags |= one_in(numbers, 8) ? O_DSYNC : 0;
    }
    struct name *name = tree_find(tree, path);
    if (name && name->inode->kind == LINK)
        return;
    if (!name && (flags & O_CREAT) && tree->count > 40)
        return;
    if (name && (flags & O_CREAT) && (flags & O_EXCL))
        expected = -EEXIST;
    else if (name && name->inode->kind == FOLDER)
        expected = -EISDIR;
    else if (!name && !(flags & O_CREAT))
        expected = -ENOENT;
    file->queue = below(numbers, QUEUES);
    file->flags = flags;
    is(ironmap_open(state->queues[file->queue], path, flags, 0600, &file->handle), expected);
    if (expected != 0)
        return;
    file->inode = name ? name->inode : tree_add(tree, path, REGULAR, 0600);
    file->inode->opens++;
    if (flags & O_TRUNC)
        resize(file->inode, 0);
}

static void read_one(struct numbers *numbers, struct open_file *file, unsigned char *memory) {
    size_t pos = random_pos(numbers), len = random_len(numbers, pos), first = below(numbers, len + 1);
    size_t expected = readable(file->inode, pos, len);
    memset(memory, 0xee, len);
    if (one_in(numbers, 2)) {
        struct iovec iov[] = {{memory, first}, {NULL, 0}, {memory + first, len - first}};
        is(ironmap_preadv(file->handle, iov, 3, pos, 0), expected);
    } else {
        is(ironmap_pread(file->handle, memory, len, pos), expected);
    }
    holds(memcmp(memory, file->inode->bytes + pos, expected) == 0);
}

static void write_one(struct numbers *numbers, struct open_file *file, unsigned char *memory) {
    size_t pos = random_pos(numbers), len = random_len(numbers, pos), first = below(numbers, len + 1);
    size_t end = file->inode->size;
    uint64_t at = UINT64_MAX;
    fill(numbers, memory, len);
    bool append = one_in(numbers, 4);
    if ((append || file->flags & O_APPEND) && end + len > LARGEST)
        return;
    if (append) {
        is(ironmap_append(file->handle, memory, len, &at), 0);
        is(at, end);
    } else if (one_in(numbers, 2)) {
        struct iovec iov[] = {{memory, first}, {memory + first, len - first}};
        is(ironmap_pwritev(file->handle, iov, 2, pos, one_in(numbers, 8) ? 2 /* RWF_DSYNC */ : 0), len);
    } else {
        is(ironmap_pwrite(file->handle, memory, len, pos), len);
    }
    write_model(file->inode, memory, len, append || file->flags & O_APPEND ? end : pos);
}

static void allocate_one(struct numbers *numbers, struct open_file *file) {
    static const int modes[] = {
        0,
        FALLOC_FL_KEEP_SIZE,
        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
        FALLOC_FL_ZERO_RANGE,
        FALLOC_FL_COLLAPSE_RANGE,
        FALLOC_FL_INSERT_RANGE,
    };
    struct inode *inode = file->inode;
    int mode = modes[below(numbers, 6)], expected = 0;
    size_t pos = random_pos(numbers), len = random_len(numbers, pos);
    bool moves = mode == FALLOC_FL_COLLAPSE_RANGE || mode == FALLOC_FL_INSERT_RANGE;
    if (len == 0 || (moves && (pos % BLOCK || len % BLOCK)))
        expected = -EINVAL;
    else if (mode == FALLOC_FL_COLLAPSE_RANGE && pos + len >= inode->size)
        expected = -EINVAL;
    else if (mode == FALLOC_FL_INSERT_RANGE && pos >= inode->size)
        expected = -EINVAL;
    else if (mode == FALLOC_FL_INSERT_RANGE && inode->size + len > LARGEST)
        return;
    is(ironmap_fallocate(file->handle, mode, pos, len), expected);
    if (expected != 0)
        return;
    if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) || mode == FALLOC_FL_ZERO_RANGE)
        memset(inode->bytes + pos, 0, len);
    if ((mode == 0 || mode == FALLOC_FL_ZERO_RANGE) && pos + len > inode->size)
        inode->size = pos + len;
    if (mode == FALLOC_FL_COLLAPSE_RANGE) {
        memmove(inode->bytes + pos, inode->bytes + pos + len, inode->size - pos - len);
        resize(inode, inode->size - len);
    } else if (mode == FALLOC_FL_INSERT_RANGE) {
        memmove(inode->bytes + pos + len, inode->bytes + pos, inode->size - pos);
        memset(inode->bytes + pos, 0, len);
        inode->size += len;
    }
}

static void ask(struct numbers *numbers, struct open_file *file) {
    struct ironmap_stat stat;
    size_t pos = random_pos(numbers), size = file->inode->size;
    is(ironmap_size(file->handle), size);
    is(ironmap_fstat(file->handle, &stat, sizeof stat), 0);
    holds(stat.size == size && stat.links == file->inode->names);
    int64_t data = ironmap_seek(file->handle, pos, SEEK_DATA), hole = ironmap_seek(file->handle, pos, SEEK_HOLE);
    if (pos >= size) {
        holds(data == -ENXIO && hole == -ENXIO);
        return;
    }
    holds(hole >= (int64_t)pos && hole <= (int64_t)size);
    size_t end = data == -ENXIO ? size : (size_t)data;
    holds(end >= pos && end <= size);
    for (size_t i = pos; i < end; i++)
        holds(file->inode->bytes[i] == 0);
}

static void change(struct state *state, struct open_file *file, unsigned char *memory) {
    struct numbers *numbers = &state->run->numbers;
    size_t size = random_pos(numbers);
    uint32_t mode = (uint32_t)below(numbers, 01000);
    switch (below(numbers, 8)) {
    case 0:
        is(ironmap_ftruncate(file->handle, size), 0);
        resize(file->inode, size);
        break;
    case 1: allocate_one(numbers, file); break;
    case 2:
        is(ironmap_fchmod(file->handle, mode), 0);
        file->inode->mode = mode;
        break;
    case 3: is(one_in(numbers, 2) ? ironmap_fsync(file->handle) : ironmap_fdatasync(file->handle), 0); break;
    default: write_one(numbers, file, memory); break;
    }
}

// A read or write of a batch.
struct request {
    struct open_file *file;
    bool is_write;
    size_t pos, len, expected;
    unsigned char *memory;
    bool is_complete;
};

// Submits requests in disjoint parts of the files, and compares their completions with the model.
static void batch(struct state *state, size_t queue, unsigned char *memory) {
    struct numbers *numbers = &state->run->numbers;
    struct request requests[BATCH];
    struct ironmap_completion completions[5];
    size_t count = 0, left, part = LARGEST / BATCH;
    for (size_t i = 0; i < BATCH; i++) {
        struct open_file *file = &state->files[below(numbers, FILES)];
        struct request *request = &requests[count];
        if (!file->handle || file->queue != queue)
            continue;
        *request = (struct request){.file = file, .memory = memory + i * part, .pos = i * part + below(numbers, 4) * 512};
        request->len = below(numbers, part - 2048);
        request->is_write = writes(file) && !(file->flags & O_APPEND) && one_in(numbers, 2);
        if (request->is_write) {
            fill(numbers, request->memory, request->len);
            // Reads of the batch are inside the size before it, or see the zeros or the end that the model has too.
            request->pos = file->inode->size > request->pos + request->len ? request->pos : 0;
            request->len = readable(file->inode, request->pos, request->pos ? request->len : 0);
            write_model(file->inode, request->memory, request->len, request->pos);
            request->expected = request->len;
            is(ironmap_submit_write(file->handle, request->memory, request->len, request->pos, 0, request), 0);
        } else {
            request->expected = readable(file->inode, request->pos, request->len);
            is(ironmap_submit_read(file->handle, request->memory, request->len, request->pos, 0, request), 0);
        }
        count++;
    }
    is(ironmap_outstanding(state->queues[queue]), count);
    for (left = count; left > 0;) {
        is(ironmap_wait(state->queues[queue], below(numbers, 3)), 0);
        ptrdiff_t got = ironmap_reap(state->queues[queue], completions, 5, sizeof *completions);
        holds(got >= 0 && (size_t)got <= left);
        left -= (size_t)got;
        for (ptrdiff_t i = 0; i < got; i++) {
            struct request *request = completions[i].user;
            holds(!request->is_complete);
            request->is_complete = true;
            is(completions[i].result, request->expected);
            if (!request->is_write)
                holds(memcmp(request->memory, request->file->inode->bytes + request->pos, request->expected) == 0);
        }
    }
    is(ironmap_reap(state->queues[queue], completions, 5, sizeof *completions), 0);
}

// Reads many ranges; some of the entries are wrong.
static void read_many(struct state *state, size_t queue, unsigned char *memory) {
    struct numbers *numbers = &state->run->numbers;
    struct ironmap_read list[BATCH];
    ptrdiff_t expected[BATCH];
    struct inode *inodes[BATCH];
    size_t part = LARGEST / BATCH;
    for (size_t i = 0; i < BATCH; i++) {
        struct open_file *file = &state->files[below(numbers, FILES)];
        size_t pos = random_pos(numbers), len = below(numbers, part);
        list[i] = (struct ironmap_read){file->handle, memory + i * part, len, pos, 99};
        inodes[i] = file->inode;
        if (!file->handle)
            expected[i] = -EBADF;
        else if (file->queue != queue)
            expected[i] = -EINVAL;
        else if (one_in(numbers, 6) && len > 0)
            list[i].memory = NULL, expected[i] = -EFAULT;
        else
            expected[i] = (ptrdiff_t)readable(file->inode, pos, len);
        if (one_in(numbers, 10))
            list[i].file = (void *)state->queues[queue], expected[i] = -EBADF;
    }
    is(ironmap_read_many(state->queues[queue], list, BATCH, sizeof *list), 0);
    for (size_t i = 0; i < BATCH; i++) {
        is(list[i].result, expected[i]);
        if (expected[i] > 0)
            holds(memcmp(list[i].memory, inodes[i]->bytes + list[i].pos, (size_t)expected[i]) == 0);
    }
}

// A file that was opened for reading cannot be changed, except for its permissions.
static void refuse_changes(struct open_file *file, unsigned char *memory) {
    is(ironmap_pwrite(file->handle, memory, 1, 0), -EROFS);
    is(ironmap_append(file->handle, memory, 1, NULL), -EROFS);
    is(ironmap_submit_write(file->handle, memory, 1, 0, 0, NULL), -EROFS);
    is(ironmap_ftruncate(file->handle, 0), -EROFS);
    is(ironmap_fallocate(file->handle, 0, 0, 1), -EROFS);
}

static void step(struct state *state, unsigned char *memory) {
    struct numbers *numbers = &state->run->numbers;
    struct open_file *file = &state->files[below(numbers, FILES)];
    size_t queue = below(numbers, QUEUES);
    switch (below(numbers, 24)) {
    case 0: renew_queue(state, queue); return;
    case 1: case 2: batch(state, queue, memory); return;
    case 3: read_many(state, queue, memory); return;
    case 4: run_names(state->run, 1); return;
    }
    if (!file->handle) {
        open_one(state, file);
        return;
    }
    switch (below(numbers, 12)) {
    case 0: close_one(file); break;
    case 1: ask(numbers, file); break;
    case 2: case 3: case 4: case 5:
        read_one(numbers, file, memory);
        break;
    default:
        if (writes(file))
            change(state, file, memory);
        else
            refuse_changes(file, memory);
    }
}

// O_TRUNC empties a file whose size has grown through another handle, and whose inode on the disk has not been written since.
static void truncate_open_file(struct run *run) {
    struct ironmap_queue *queue;
    struct ironmap_file *grown, *file;
    struct ironmap_stat stat;
    char byte = 'x';
    is(ironmap_volume_queue(run->volume, 1, &queue), 0);
    for (int append = 0; append < 2; append++) {
        is(ironmap_open(queue, "/grown", O_RDWR | O_CREAT, 0600, &grown), 0);
        is(ironmap_pwrite(grown, &byte, 1, 4095), 1);
        is(ironmap_open(queue, "/grown", O_WRONLY | O_TRUNC | (append ? O_APPEND : 0), 0, &file), 0);
        is(ironmap_size(file), 0);
        is(ironmap_size(grown), 0);
        is(ironmap_unlink(run->volume, "/grown"), 0);
        is(ironmap_fstat(grown, &stat, sizeof stat), 0);
        is(stat.links, 0);
    }
    is(ironmap_queue_free(queue), 0);
}

void run_files(struct run *run) {
    struct state state = {.run = run};
    unsigned char *memory = memory_of(LARGEST);
    truncate_open_file(run);
    for (size_t i = 0; i < QUEUES; i++)
        is(ironmap_volume_queue(run->volume, (uint32_t)i, &state.queues[i]), 0);
    for (size_t i = 0; i < run->steps; i++)
        step(&state, memory);
    is(ironmap_volume_close(run->volume), -EBUSY);
    for (size_t i = 0; i < QUEUES; i++) {
        renew_queue(&state, i);
        is(ironmap_queue_free(state.queues[i]), 0);
    }
    free(memory);
}
