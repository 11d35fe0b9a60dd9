// A signal handler that calls functions on the queue whose call the signal has interrupted.
#include "model.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

enum { SIZE = 64 * 1024, PIECE = 4096 };

// The variables of the handler.
static struct ironmap_file *interrupted;
static unsigned char expected[SIZE], seen[PIECE];
static volatile sig_atomic_t refusals, right_reads, wrong_results;
static volatile size_t position;

static void on_signal(int signal) {
    (void)signal;
    int before = errno;
    position = (position + 777) % (SIZE - PIECE);
    ptrdiff_t result = ironmap_pread(interrupted, seen, PIECE, position);
    if (result == -EBUSY)
        refusals++;
    else if (result == PIECE && memcmp(seen, expected + position, PIECE) == 0)
        right_reads++;
    else
        wrong_results = (sig_atomic_t)result ? (sig_atomic_t)result : 1;
    errno = before;
}

// The next signal. One signal at a time lets slow programs proceed, such as those under valgrind.
static void set_timer(int microseconds) {
    struct itimerval timer = {.it_value = {0, microseconds}};
    is(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

// All calls are on the queue, because a handler may interrupt only these.
static void one_round(struct numbers *numbers, struct ironmap_queue *queue, struct ironmap_file *scratch) {
    static unsigned char memory[8][PIECE];
    struct ironmap_completion completions[8];
    struct ironmap_read reads[8];
    struct ironmap_file *other;
    size_t at = below(numbers, SIZE - PIECE), left;
    set_timer(1 + (int)below(numbers, 300));
    is(ironmap_pread(interrupted, memory[0], PIECE, at), PIECE);
    holds(memcmp(memory[0], expected + at, PIECE) == 0);
    for (size_t i = 0; i < 8; i++) {
        at = below(numbers, SIZE - PIECE);
        reads[i] = (struct ironmap_read){i == 3 ? NULL : interrupted, memory[i], PIECE, at, 0};
        is(ironmap_submit_read(interrupted, memory[i], PIECE, at, 0, (void *)at), 0);
    }
    for (left = 8; left > 0;) {
        set_timer(1 + (int)below(numbers, 300));
        is(ironmap_wait(queue, 1), 0);
        ptrdiff_t got = ironmap_reap(queue, completions, 8, sizeof *completions);
        holds(got >= 0);
        for (ptrdiff_t i = 0; i < got; i++)
            is(completions[i].result, PIECE);
        left -= (size_t)got;
    }
    set_timer(1 + (int)below(numbers, 300));
    is(ironmap_read_many(queue, reads, 8, sizeof *reads), 0);
    for (size_t i = 0; i < 8; i++) {
        is(reads[i].result, i == 3 ? -EBADF : PIECE);
        holds(i == 3 || memcmp(memory[i], expected + reads[i].pos, PIECE) == 0);
    }
    set_timer(1 + (int)below(numbers, 300));
    is(ironmap_pwrite(scratch, memory[0], PIECE, 0), PIECE);
    is(ironmap_pread(scratch, NULL, 1, 0), -EFAULT);
    is(ironmap_open(queue, "/missing", O_RDONLY, 0, &other), -ENOENT);
    is(ironmap_open(queue, "/signals", O_RDONLY, 0, &other), 0);
    is(ironmap_close(other), 0);
    is(ironmap_fdatasync(scratch), 0);
}

void run_signals(struct run *run) {
    struct ironmap_queue *queue;
    struct ironmap_file *scratch;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    struct inode *inode = tree_add(&run->tree, "/signals", REGULAR, 0600);
    struct inode *scratch_inode = tree_add(&run->tree, "/scratch", REGULAR, 0600);
    is(ironmap_volume_queue(run->volume, 4, &queue), 0);
    is(ironmap_open(queue, "/signals", O_RDWR | O_CREAT, 0600, &interrupted), 0);
    is(ironmap_open(queue, "/scratch", O_RDWR | O_CREAT, 0600, &scratch), 0);
    fill(&run->numbers, expected, SIZE);
    is(ironmap_pwrite(interrupted, expected, SIZE, 0), SIZE);
    memcpy(inode->bytes, expected, SIZE);
    inode->size = SIZE;
    is(sigaction(SIGALRM, &action, &old), 0);
    alarm(0);
    for (size_t i = 0; i < 5 + run->steps / 10; i++)
        one_round(&run->numbers, queue, scratch);
    set_timer(0);
    is(sigaction(SIGALRM, &old, NULL), 0);
    alarm(3600);
    is(wrong_results, 0);
    printf("model: %d signals in a call, %d between calls\n", (int)refusals, (int)right_reads);
    holds(refusals > 0);
    is(ironmap_pread(scratch, scratch_inode->bytes, PIECE, 0), PIECE);
    scratch_inode->size = PIECE;
    is(ironmap_queue_free(queue), 0);
}
