// Handles that several threads use at a time: the files of a pool, buffers, and the closing of one handle.
#include "model.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, REGION = 32 * 1024, MOST = 24 };

struct worker {
    pthread_t thread;
    struct run *run;
    struct ironmap_pool *pool;
    struct ironmap_pool_file *file, *log;
    struct inode *inode;
    struct numbers numbers;
    size_t index;
    uint64_t records[MOST];
    size_t count;
};

// Each thread has its own region of the file.
static void in_own_region(struct worker *worker, unsigned char *memory) {
    size_t begin = worker->index * REGION, at = below(&worker->numbers, REGION), len = below(&worker->numbers, REGION - at);
    unsigned char *model = worker->inode->bytes + begin;
    struct ironmap_pool_read reads[3];
    switch (below(&worker->numbers, 4)) {
    case 0:
        fill(&worker->numbers, model + at, len);
        is(ironmap_pool_pwrite(worker->file, model + at, len, begin + at), len);
        break;
    case 1:
        for (size_t i = 0; i < 3; i++) {
            size_t pos = i * REGION / 3;
            reads[i] = (struct ironmap_pool_read){memory + pos, below(&worker->numbers, REGION / 3), begin + pos, 7};
        }
        bool is_wrong = one_in(&worker->numbers, 4) && reads[1].len > 0;
        reads[1].memory = is_wrong ? NULL : reads[1].memory;
        is(ironmap_pool_read_many(worker->file, reads, 3, sizeof *reads), 0);
        for (size_t i = 0; i < 3; i++) {
            is(reads[i].result, is_wrong && i == 1 ? -EFAULT : (ptrdiff_t)reads[i].len);
            holds((is_wrong && i == 1) || memcmp(reads[i].memory, model + i * REGION / 3, reads[i].len) == 0);
        }
        break;
    case 2: is(ironmap_pool_fsync(worker->file, one_in(&worker->numbers, 2)), 0); break;
    default:
        is(ironmap_pool_pread(worker->file, memory, len, begin + at), len);
        holds(memcmp(memory, model + at, len) == 0);
    }
}

static void *work(void *arg) {
    struct worker *worker = arg;
    struct run *run = worker->run;
    unsigned char *memory = memory_of(REGION);
    for (size_t step = 0; step < run->steps / THREADS; step++) {
        struct ironmap_pool_file *other;
        struct ironmap_buffer *buffer;
        struct ironmap_stat stat;
        in_own_region(worker, memory);
        is(ironmap_pool_size(worker->file), THREADS * REGION);
        if (worker->count < MOST && one_in(&worker->numbers, 8)) {
            unsigned char record[100];
            memset(record, (int)(1 + worker->index), sizeof record);
            is(ironmap_pool_append(worker->log, record, sizeof record, &worker->records[worker->count++]), 0);
        }
        is(ironmap_pool_open(worker->pool, "/pool", O_RDONLY, 0, &other), 0);
        is(ironmap_pool_close(other), 0);
        is(ironmap_pool_close(other), -EBADF);
        is(ironmap_buffer_new(4096, &buffer), 0);
        is(ironmap_buffer_free(buffer), 0);
        is(ironmap_stat(run->volume, "/pool", 0, &stat, sizeof stat), 0);
        is(ironmap_pool_free(worker->pool), -EBUSY);
    }
    free(memory);
    return NULL;
}

static void use_pool(struct run *run, uint32_t threads) {
    struct worker workers[THREADS];
    struct ironmap_pool *pool;
    struct ironmap_pool_file *file, *log;
    struct inode *inode = tree_add(&run->tree, "/pool", REGULAR, 0600);
    struct inode *log_inode = tree_add(&run->tree, "/log", REGULAR, 0600);
    is(ironmap_volume_pool(run->volume, threads, 0, &pool), 0);
    is(ironmap_pool_open(pool, "/pool", O_RDWR | O_CREAT, 0600, &file), 0);
    is(ironmap_pool_open(pool, "/log", O_RDWR | O_CREAT | O_APPEND, 0600, &log), 0);
    inode->size = THREADS * REGION;
    is(ironmap_pool_pwrite(file, inode->bytes, inode->size, 0), inode->size);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.run = run, .pool = pool, .file = file, .log = log, .inode = inode, .index = i};
        workers[i].numbers.state = any(&run->numbers);
        is(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        is(pthread_join(workers[i].thread, NULL), 0);
        for (size_t record = 0; record < workers[i].count; record++)
            memset(log_inode->bytes + workers[i].records[record], (int)(1 + i), 100);
        log_inode->size += 100 * workers[i].count;
    }
    is(ironmap_volume_close(run->volume), -EBUSY);
    is(ironmap_pool_close(file), 0);
    is(ironmap_pool_close(log), 0);
    is(ironmap_pool_pread(file, workers, 1, 0), -EBADF);
    is(ironmap_pool_free(pool), 0);
    is(ironmap_pool_free(pool), -EBADF);
}

// A handle that several threads close at a time is closed once.
struct race {
    struct ironmap_buffer *buffer;
    pthread_barrier_t barrier;
    atomic_size_t closed;
    size_t rounds;
};

static void *close_all(void *arg) {
    struct race *race = arg;
    for (size_t i = 0; i < race->rounds; i++) {
        if (pthread_barrier_wait(&race->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            is(ironmap_buffer_new(64, &race->buffer), 0);
        pthread_barrier_wait(&race->barrier);
        int result = ironmap_buffer_free(race->buffer);
        holds(result == 0 || result == -EBADF);
        atomic_fetch_add(&race->closed, result == 0);
    }
    return NULL;
}

// The queue of a thread that has ended belongs to no later thread, which may have the same memory for its data.
static void *leave_queue(void *arg) {
    struct ironmap_host *host;
    is(ironmap_host_open(NULL, &host), 0);
    is(ironmap_host_queue(host, 4, arg), 0);
    return NULL;
}

static void *use_left_queue(void *queue) {
    is(ironmap_outstanding(queue), -EPERM);
    is(ironmap_queue_free(queue), -EPERM);
    return NULL;
}

static void after_end_of_thread(void) {
    struct ironmap_queue *queue = NULL;
    pthread_t thread;
    is(pthread_create(&thread, NULL, leave_queue, &queue), 0);
    is(pthread_join(thread, NULL), 0);
    for (int i = 0; i < 4; i++) {
        is(pthread_create(&thread, NULL, use_left_queue, queue), 0);
        is(pthread_join(thread, NULL), 0);
    }
}

// A destructor of the thread's data frees its queue.
static struct ironmap_host *key_host;

static void free_at_end(void *queue) {
    is(ironmap_queue_free(queue), 0);
}

static void *free_queue_at_end(void *key) {
    struct ironmap_queue *queue;
    is(ironmap_host_queue(key_host, 4, &queue), 0);
    is(pthread_setspecific(*(pthread_key_t *)key, queue), 0);
    return NULL;
}

static void destructors(void) {
    pthread_key_t key;
    pthread_t thread;
    is(ironmap_host_open(NULL, &key_host), 0);
    is(pthread_key_create(&key, free_at_end), 0);
    is(pthread_create(&thread, NULL, free_queue_at_end, &key), 0);
    is(pthread_join(thread, NULL), 0);
    is(pthread_key_delete(key), 0);
    is(ironmap_host_close(key_host), 0);
}

void run_threads(struct run *run) {
    struct race race = {.rounds = run->steps / 4};
    pthread_t threads[THREADS];
    after_end_of_thread();
    destructors();
    use_pool(run, 2);
    is(pthread_barrier_init(&race.barrier, NULL, THREADS), 0);
    for (size_t i = 0; i < THREADS; i++)
        is(pthread_create(&threads[i], NULL, close_all, &race), 0);
    for (size_t i = 0; i < THREADS; i++)
        is(pthread_join(threads[i], NULL), 0);
    is(pthread_barrier_destroy(&race.barrier), 0);
    is(race.closed, race.rounds);
}
