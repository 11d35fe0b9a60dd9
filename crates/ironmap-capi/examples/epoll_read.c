// Reads a file with 64 requests in flight, in an epoll loop, and prints its bytes and an FNV checksum:
//
//   epoll_read FILE            a file of the host
//   epoll_read FILE VOLUME     a file of an unmounted ext4 or XFS file system
#include <errno.h>
#include <fcntl.h>
#include <ironmap.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

enum { DEPTH = 64, PIECE = 64 * 1024 };

struct request {
    unsigned char *memory;
    uint64_t pos;
    ptrdiff_t len;
    int is_complete;
};

static struct ironmap_volume *volume;
static struct ironmap_host *host;
static struct ironmap_queue *queue;
static struct ironmap_file *file;

// Ends the program if a call has failed, and returns its result otherwise.
static ptrdiff_t check(ptrdiff_t result, const char *what) {
    struct ironmap_failure failure;
    if (result >= 0)
        return result;
    if (ironmap_failure(NULL, &failure, sizeof failure) == 0)
        fprintf(stderr, "epoll_read: %s: %s\n", what, failure.message);
    exit(1);
}

static void check_system(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static void open_file(const char *path, const char *location) {
    if (location) {
        check(ironmap_volume_open(location, NULL, NULL, 0, &volume), location);
        check(ironmap_volume_queue(volume, DEPTH, &queue), location);
    } else {
        check(ironmap_host_open(NULL, &host), "host");
        check(ironmap_host_queue(host, DEPTH, &queue), "queue");
    }
    check(ironmap_open(queue, path, O_RDONLY, 0, &file), path);
}

static void submit(struct request *request, uint64_t pos) {
    request->pos = pos;
    request->is_complete = 0;
    check(ironmap_submit_read(file, request->memory, PIECE, pos, 0, request), "submit");
}

// Takes all available completions. The caller waits for the descriptor afterwards.
static void reap(void) {
    struct ironmap_completion completions[DEPTH];
    ptrdiff_t count = check(ironmap_reap(queue, completions, DEPTH, sizeof *completions), "reap");
    for (ptrdiff_t i = 0; i < count; i++) {
        struct request *request = completions[i].user;
        request->len = check(completions[i].result, "read");
        request->is_complete = 1;
    }
}

int main(int argc, char **argv) {
    static struct request requests[DEPTH];
    struct epoll_event event = {.events = EPOLLIN};
    uint64_t next = 0, bytes = 0, sum = 0xcbf29ce484222325;
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: %s FILE [VOLUME]\n", argv[0]);
        return 2;
    }
    open_file(argv[1], argv[2]);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    check_system(epoll, "epoll_create1");
    int ready = (int)check(ironmap_queue_fd(queue), "queue_fd");
    check_system(epoll_ctl(epoll, EPOLL_CTL_ADD, ready, &event), "epoll_ctl");

    unsigned char *memory = aligned_alloc(4096, (size_t)DEPTH * PIECE);
    if (!memory) {
        perror("memory");
        return 1;
    }
    for (int i = 0; i < DEPTH; i++, next += PIECE) {
        requests[i].memory = memory + (size_t)i * PIECE;
        submit(&requests[i], next);
    }
    reap();
    // The checksum covers the pieces in the order of the file. The last piece is short.
    for (int i = 0;; i = (i + 1) % DEPTH, next += PIECE) {
        struct request *request = &requests[i];
        while (!request->is_complete) {
            // The kernel may interrupt the wait for its work on requests, even without a signal.
            if (epoll_wait(epoll, &event, 1, -1) < 0 && errno != EINTR)
                check_system(-1, "epoll_wait");
            reap();
        }
        for (ptrdiff_t byte = 0; byte < request->len; byte++)
            sum = (sum ^ request->memory[byte]) * 0x100000001b3;
        bytes += (uint64_t)request->len;
        if (request->len < PIECE)
            break;
        submit(request, next);
    }
    printf("%llu bytes, checksum %016llx\n", (unsigned long long)bytes, (unsigned long long)sum);

    // This call waits for the requests past the end of the file. The memory can be freed only afterwards.
    check(ironmap_queue_free(queue), "queue");
    free(memory);
    if (volume)
        check(ironmap_volume_close(volume), "close");
    if (host)
        check(ironmap_host_close(host), "close");
    return 0;
}
