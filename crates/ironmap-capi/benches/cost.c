// Reads blocks of 4 KiB at random positions with the C library, for the instruction count of benches/cost.rs:
//
//   cost IMAGE pread|queue|pool REQUESTS
#define _GNU_SOURCE
#include <ironmap.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, DEPTH = 32 };
static const uint64_t SEED = 0x9E3779B97F4A7C15, FILE_BYTES = 64 << 20;
static char memory[DEPTH][BLOCK] __attribute__((aligned(BLOCK)));

// The position of the next read, by a pseudorandom generator (xorshift).
static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % (FILE_BYTES / BLOCK) * BLOCK;
}

static long must(long result, const char *call) {
    if (result < 0) {
        struct ironmap_failure failure;
        if (ironmap_failure(NULL, &failure, sizeof failure) == 0) {
            fprintf(stderr, "%s: %s\n", call, failure.message);
        }
        exit(1);
    }
    return result;
}

static void reads(struct ironmap_file *file, long requests) {
    uint64_t state = SEED;
    for (long done = 0; done < requests; done++) {
        if (ironmap_pread(file, memory[0], BLOCK, next(&state)) != BLOCK) {
            exit(1);
        }
    }
}

static void queued(struct ironmap_queue *queue, struct ironmap_file *file, long requests) {
    struct ironmap_completion completions[DEPTH];
    void *spare[DEPTH];
    size_t spares = DEPTH;
    uint64_t state = SEED;
    for (size_t at = 0; at < DEPTH; at++) {
        spare[at] = memory[at];
    }
    while (requests > 0 || spares < DEPTH) {
        while (requests > 0 && spares > 0) {
            void *to = spare[--spares];
            if (ironmap_submit_read(file, to, BLOCK, next(&state), 0, to) != 0) {
                exit(1);
            }
            requests--;
        }
        must(ironmap_wait(queue, 1), "wait");
        long count = must(ironmap_reap(queue, completions, DEPTH, sizeof *completions), "reap");
        for (long at = 0; at < count; at++) {
            if (completions[at].result != BLOCK) {
                exit(1);
            }
            spare[spares++] = completions[at].user;
        }
    }
}

int main(int argc, char **argv) {
    struct ironmap_volume *volume;
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    if (argc != 4) {
        return 2;
    }
    must(ironmap_volume_open(argv[1], "null", NULL, 0, &volume), "open");
    must(ironmap_volume_queue(volume, DEPTH, &queue), "queue");
    must(ironmap_open(queue, "/data", O_RDONLY | O_DIRECT, 0, &file), "open /data");
    if (strcmp(argv[2], "pread") == 0) {
        reads(file, atol(argv[3]));
    } else {
        queued(queue, file, atol(argv[3]));
    }
    must(ironmap_queue_free(queue), "free the queue");
    must(ironmap_volume_close(volume), "close");
    return 0;
}
