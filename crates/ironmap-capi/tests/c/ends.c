// Ends and refusals: calls while a thread or a fork ends, failures of the caller's functions, and results of single requests.
#include "model.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct run *current;
static pthread_key_t key;
static int destructions;

// A destructor of a thread's data frees the queue of the thread. Another queue is made, or refused.
static void end_thread(void *queue) {
    struct ironmap_queue *later = NULL;
    destructions++;
    is(ironmap_outstanding(queue), 0);
    is(ironmap_queue_free(queue), 0);
    int made = ironmap_volume_queue(current->volume, 4, &later);
    holds(made == 0 || made == -EBUSY);
    if (made == 0)
        is(ironmap_queue_free(later), 0);
    is(ironmap_volume_sync(current->volume), 0);
}

static void *make_queue(void *arg) {
    struct ironmap_queue *queue;
    (void)arg;
    is(ironmap_volume_queue(current->volume, 4, &queue), 0);
    is(pthread_setspecific(key, queue), 0);
    return NULL;
}

static void threads_that_end(void) {
    pthread_t thread;
    is(pthread_key_create(&key, end_thread), 0);
    for (int i = 0; i < 20; i++) {
        is(pthread_create(&thread, NULL, make_queue, NULL), 0);
        is(pthread_join(thread, NULL), 0);
    }
    is(destructions, 20);
    is(pthread_key_delete(key), 0);
}

// Handlers of forks, which the program registers after the library was loaded.
static struct ironmap_buffer *of_parent;
static bool watches;

static void before_fork(void) {
    struct ironmap_buffer *buffer;
    if (!watches)
        return;
    is(ironmap_buffer_new(100, &buffer), 0);
    is(ironmap_buffer_free(buffer), 0);
}

static void in_child(void) {
    struct ironmap_buffer *buffer;
    if (!watches)
        return;
    is(ironmap_buffer_size(of_parent), -EBADF);
    is(ironmap_buffer_new(100, &buffer), 0);
    is(ironmap_buffer_free(buffer), 0);
}

static void handlers_of_forks(void) {
    int status;
    is(ironmap_buffer_new(100, &of_parent), 0);
    is(pthread_atfork(before_fork, before_fork, in_child), 0);
    watches = true;
    fflush(stdout);
    pid_t child = fork();
    holds(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(0);
    }
    is(waitpid(child, &status, 0), child);
    holds(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    watches = false;
    is(ironmap_buffer_free(of_parent), 0);
}

// A function that provides a tar archive: it tries to free the image, and then fails in its own way.
struct source {
    struct ironmap_image *image;
    long result;
    int calls;
};

static ssize_t provide(void *arg, void *memory, size_t len) {
    struct source *source = arg;
    (void)memory, (void)len;
    source->calls++;
    is(ironmap_image_free(source->image), -EBUSY);
    return source->result;
}

static void failures_of_functions(void) {
    static const long results[] = {-EINTR, -EIO, -(1L << 32), PTRDIFF_MIN, -4096, PTRDIFF_MAX};
    char path[PATH];
    snprintf(path, sizeof path, "%s.none", current->image);
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        struct source source = {.result = results[i]};
        is(ironmap_image_new(&source.image), 0);
        is(ironmap_image_add_tar(source.image, "tar", provide, &source, 0), 0);
        holds(ironmap_image_build(source.image, path, NULL, NULL) < 0);
        is(source.calls, 1);
        is(access(path, F_OK), -1);
        is(ironmap_image_free(source.image), 0);
    }
}

// The failure of a call with a handle of another type is not kept for this handle.
static void failures_of_other_types(void) {
    struct ironmap_buffer *buffer;
    struct ironmap_failure failure;
    is(ironmap_buffer_new(100, &buffer), 0);
    is(ironmap_volume_sync((struct ironmap_volume *)buffer), -EBADF);
    is(ironmap_failure(buffer, &failure, sizeof failure), -ENODATA);
    is(ironmap_failure(NULL, &failure, sizeof failure), 0);
    is(failure.error, EBADF);
    is(ironmap_buffer_free(buffer), 0);
}

// A read with NULL fails alone, and a read whose memory is much longer than the file needs no more memory.
static void single_reads(void) {
    const size_t huge = (size_t)1 << 40;
    char bytes[2][100];
    struct ironmap_pool_read reads[] = {
        {.memory = bytes[0], .len = 100, .pos = 0, .result = -77},
        {.memory = NULL, .len = 100, .pos = 0, .result = -77},
        {.memory = bytes[1], .len = 100, .pos = 50, .result = -77},
    };
    struct ironmap_host *host;
    struct ironmap_queue *queue;
    struct ironmap_pool *pool;
    struct ironmap_pool_file *file;
    is(ironmap_host_open(NULL, &host), 0);
    is(ironmap_host_queue(host, 4, &queue), 0);
    is(ironmap_host_pool(host, 1, 4, &pool), 0);
    is(ironmap_pool_open(pool, current->host_file, O_RDONLY, 0, &file), 0);
    int64_t size = ironmap_pool_size(file);
    is(ironmap_read_many_on(queue, file, reads, 3, sizeof *reads), 0);
    is(reads[0].result, 100);
    is(reads[1].result, -EFAULT);
    is(reads[2].result, 100);
    holds((unsigned char)bytes[1][3] == host_byte(53));
    void *memory = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
        is(ironmap_pool_pread(file, memory, huge, 0), size);
        is(ironmap_pool_pread(file, memory, huge, 7), size - 7);
        is(munmap(memory, huge), 0);
    }
    is(ironmap_pool_close(file), 0);
    is(ironmap_pool_free(pool), 0);
    is(ironmap_queue_free(queue), 0);
    is(ironmap_host_close(host), 0);
}

void run_ends(struct run *run) {
    current = run;
    threads_that_end();
    failures_of_functions();
    failures_of_other_types();
    single_reads();
    handlers_of_forks();
}
