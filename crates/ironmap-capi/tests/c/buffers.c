// Buffers that are freed while requests are in flight, and descriptors for poll.
#include "model.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { PARTS = 8, PART = 16 * 1024 };

static atomic_size_t released;

// The memory of a wrapped buffer, as in a program that maps huge pages.
static void unmap(void *arg) {
    is(munmap(arg, PARTS * PART), 0);
    atomic_fetch_add(&released, 1);
}

static struct ironmap_buffer *new_buffer(struct numbers *numbers, bool wrap, size_t *wrapped) {
    struct ironmap_buffer *buffer;
    if (!wrap) {
        is(ironmap_buffer_new(PARTS * PART, &buffer), 0);
        const unsigned char *bytes = ironmap_buffer_data(buffer);
        holds((uintptr_t)bytes % 512 == 0 && bytes[0] == 0 && bytes[PARTS * PART - 1] == 0);
    } else {
        void *memory = mmap(NULL, PARTS * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        holds(memory != MAP_FAILED);
        is(ironmap_buffer_wrap(memory, PARTS * PART, unmap, memory, &buffer), 0);
        holds(ironmap_buffer_data(buffer) == memory);
        ++*wrapped;
    }
    is(ironmap_buffer_size(buffer), PARTS * PART);
    fill(numbers, ironmap_buffer_data(buffer), PARTS * PART);
    return buffer;
}

// Waits as a program with an event loop does: for the descriptor, and then until it gets fewer completions than it has space for.
static void finish(struct ironmap_queue *queue, int fd, size_t count) {
    struct ironmap_completion completions[3];
    while (count > 0) {
        struct pollfd ready = {fd, POLLIN, 0};
        ptrdiff_t got;
        do {
            got = ironmap_reap(queue, completions, 3, sizeof *completions);
            holds(got >= 0 && (size_t)got <= count);
            for (ptrdiff_t i = 0; i < got; i++)
                is(completions[i].result, PART);
            count -= (size_t)got;
        } while (got == 3);
        // The kernel may interrupt the wait for its work on requests, even without a signal.
        if (count > 0 && poll(&ready, 1, 60000) != 1)
            is(errno, EINTR);
    }
}

// One round writes from a buffer or reads into it. The buffer is freed before, between or after its requests.
static void round_of(struct run *run, struct ironmap_queue *queue, struct ironmap_file *file, struct inode *inode) {
    struct numbers *numbers = &run->numbers;
    static size_t wrapped;
    bool wrap = one_in(numbers, 2), write = one_in(numbers, 2), by_address = one_in(numbers, 3);
    struct ironmap_buffer *buffer = new_buffer(numbers, wrap, &wrapped);
    unsigned char *bytes = ironmap_buffer_data(buffer);
    size_t before = atomic_load(&released), freed_after = below(numbers, PARTS + 1), count = 0;
    int fd = ironmap_queue_fd(queue);
    holds(fd >= 0);
    is(ironmap_queue_fd(queue), fd);
    if (write)
        memcpy(inode->bytes, bytes, freed_after * PART);
    for (size_t i = 0; i < PARTS; i++) {
        if (i == freed_after)
            is(ironmap_buffer_free(buffer), 0);
        int expected = i >= freed_after ? -EBADF : 0;
        if (write)
            is(ironmap_submit_write_buffer(file, buffer, i * PART, PART, i * PART, 0, bytes), expected);
        else if (by_address && expected == 0)
            is(ironmap_submit_read(file, bytes + i * PART, PART, i * PART, 0, bytes), 0);
        else
            is(ironmap_submit_read_buffer(file, buffer, i * PART, PART, i * PART, 0, bytes), expected);
        count += expected == 0;
        // Memory that was submitted by its address must stay until the completions. The requests keep the memory of a buffer.
        if (by_address && !write && i + 1 == freed_after) {
            finish(queue, fd, count);
            count = 0;
        }
    }
    if (freed_after == PARTS) {
        finish(queue, fd, count);
        count = 0;
        holds(memcmp(bytes, inode->bytes, PARTS * PART) == 0);
        is(ironmap_buffer_free(buffer), 0);
    }
    is(ironmap_buffer_free(buffer), -EBADF);
    finish(queue, fd, count);
    is(ironmap_outstanding(queue), 0);
    is(atomic_load(&released) - before, wrap);
}

// A registered buffer is released after its queue was freed.
static void registered(struct run *run, const struct inode *inode) {
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    size_t wrapped = 0, before = atomic_load(&released);
    struct ironmap_buffer *buffer = new_buffer(&run->numbers, true, &wrapped);
    struct ironmap_buffer *second = new_buffer(&run->numbers, false, &wrapped);
    is(ironmap_volume_queue(run->volume, 4, &queue), 0);
    is(ironmap_open(queue, "/buffers", O_RDONLY, 0, &file), 0);
    is(ironmap_queue_register(queue, buffer), 0);
    is(ironmap_queue_register(queue, second), -EBUSY);
    is(ironmap_queue_register(queue, buffer), -EBUSY);
    unsigned char *bytes = ironmap_buffer_data(buffer);
    is(ironmap_submit_read(file, bytes, PART, 0, 0, NULL), 0);
    is(ironmap_submit_read_buffer(file, buffer, PART, PART, PART, 0, NULL), 0);
    is(ironmap_submit_read_buffer(file, second, 0, PART, 0, 0, NULL), 0);
    is(ironmap_buffer_free(buffer), 0);
    is(ironmap_buffer_free(second), 0);
    is(ironmap_queue_register(queue, second), -EBADF);
    finish(queue, ironmap_queue_fd(queue), 3);
    holds(memcmp(bytes, inode->bytes, 2 * PART) == 0);
    is(atomic_load(&released), before);
    is(ironmap_queue_free(queue), 0);
    is(atomic_load(&released), before + 1);
}

// A queue is freed while requests are in flight, whose buffers were freed before. More requests are submitted than the queue has depth.
static void abandoned(struct run *run, bool write) {
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    size_t wrapped = 0, before = atomic_load(&released);
    unsigned char *memory = memory_of(PARTS * PART);
    struct ironmap_buffer *buffer = new_buffer(&run->numbers, true, &wrapped);
    is(ironmap_volume_queue(run->volume, 2, &queue), 0);
    is(ironmap_open(queue, "/buffers", O_RDWR, 0, &file), 0);
    if (write) {
        memcpy(tree_find(&run->tree, "/buffers")->inode->bytes, ironmap_buffer_data(buffer), PARTS * PART);
        for (size_t i = 0; i < PARTS; i++)
            is(ironmap_submit_write_buffer(file, buffer, i * PART, PART, i * PART, 0, NULL), 0);
    } else {
        for (size_t i = 0; i < PARTS; i++)
            is(ironmap_submit_read(file, memory + i * PART, PART, i * PART, 0, NULL), 0);
    }
    is(ironmap_buffer_free(buffer), 0);
    if (one_in(&run->numbers, 2))
        is(ironmap_close(file), 0);
    is(ironmap_queue_free(queue), 0);
    is(atomic_load(&released), before + 1);
    free(memory);
}

void run_buffers(struct run *run) {
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    struct ironmap_buffer *empty;
    struct inode *inode = tree_add(&run->tree, "/buffers", REGULAR, 0600);
    is(ironmap_volume_queue(run->volume, 4, &queue), 0);
    is(ironmap_open(queue, "/buffers", O_RDWR | O_CREAT, 0600, &file), 0);
    fill(&run->numbers, inode->bytes, PARTS * PART);
    inode->size = PARTS * PART;
    is(ironmap_pwrite(file, inode->bytes, PARTS * PART, 0), PARTS * PART);
    for (size_t step = 0; step < run->steps; step += 10) {
        round_of(run, queue, file, inode);
        if (step % 100 == 0) {
            registered(run, inode);
            abandoned(run, true);
            abandoned(run, false);
        }
    }
    is(ironmap_buffer_new(0, &empty), 0);
    is(ironmap_buffer_size(empty), 0);
    is(ironmap_submit_read_buffer(file, empty, 0, 0, 0, 0, NULL), 0);
    is(ironmap_buffer_free(empty), 0);
    is(ironmap_queue_free(queue), 0);
}
