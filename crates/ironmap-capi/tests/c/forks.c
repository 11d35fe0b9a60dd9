// Children of a process whose threads open and close handles.
#include "model.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, LIMIT = 60 };

struct opener {
    pthread_t thread;
    struct run *run;
    const struct handles *handles;
    struct numbers numbers;
};

static atomic_bool ends;

static void read_host(const char *path) {
    struct ironmap_host *host;
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    unsigned char bytes[5000];
    is(ironmap_host_open(NULL, &host), 0);
    is(ironmap_host_queue(host, 4, &queue), 0);
    is(ironmap_open(queue, path, O_RDONLY, 0, &file), 0);
    is(ironmap_pread(file, bytes, sizeof bytes, 3000), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        holds(bytes[i] == host_byte(3000 + i));
    is(ironmap_close(file), 0);
    is(ironmap_queue_free(queue), 0);
    is(ironmap_host_close(host), 0);
}

// Calls that open and close, or fail, until the forks have happened.
static void *open_and_close(void *arg) {
    struct opener *opener = arg;
    while (!atomic_load(&ends)) {
        struct ironmap_buffer *buffer;
        struct ironmap_directory *directory;
        struct ironmap_pool_file *file;
        char byte;
        switch (below(&opener->numbers, 5)) {
        case 0: read_host(opener->run->host_file); break;
        case 1:
            is(ironmap_buffer_new(100, &buffer), 0);
            is(ironmap_buffer_free(buffer), 0);
            is(ironmap_buffer_free(buffer), -EBADF);
            break;
        case 2:
            is(ironmap_opendir(opener->run->volume, "/", &directory), 0);
            is(ironmap_closedir(directory), 0);
            break;
        case 3:
            is(ironmap_pool_open(opener->handles->of[POOL], opener->run->host_file, O_RDONLY, 0, &file), 0);
            is(ironmap_pool_pread(file, &byte, 1, 9), 1);
            holds((unsigned char)byte == host_byte(9));
            is(ironmap_pool_close(file), 0);
            break;
        default: is(ironmap_pread(opener->handles->of[FILE_], &byte, 1, 0), -EPERM); break;
        }
    }
    return NULL;
}

static void *read_host_in_thread(void *arg) {
    for (int i = 0; i < 3; i++)
        read_host(arg);
    return NULL;
}

static void wait_for(pid_t child) {
    int status;
    is(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        fail(__FILE__, __LINE__, "a child has waited for %d seconds", LIMIT);
    holds(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t forked(void) {
    fflush(stdout);
    pid_t child = fork();
    holds(child >= 0);
    if (child == 0)
        alarm(LIMIT);
    return child;
}

// The child refuses the handles of its parent, and has handles, threads and children of its own.
static _Noreturn void be_child(const struct run *run, const struct handles *handles) {
    pthread_t threads[2];
    struct ironmap_failure failure;
    for (size_t i = 0; i < calls_count; i++) {
        long result = calls[i].run(handles->of[calls[i].type]);
        if (result != -EBADF)
            fail(__FILE__, __LINE__, "%s on a handle of the parent is %ld", calls[i].name, result);
    }
    is(ironmap_failure(NULL, &failure, sizeof failure), 0);
    holds(strstr(failure.message, "parent") != NULL);
    read_host(run->host_file);
    for (int i = 0; i < 2; i++)
        is(pthread_create(&threads[i], NULL, read_host_in_thread, (void *)run->host_file), 0);
    pid_t child = forked();
    if (child == 0) {
        read_host(run->host_file);
        _exit(0);
    }
    for (int i = 0; i < 2; i++)
        is(pthread_join(threads[i], NULL), 0);
    wait_for(child);
    _exit(0);
}

void run_forks(struct run *run) {
    struct opener openers[THREADS];
    struct handles handles;
    char byte;
    open_handles(&handles, run->volume, "/forks", run->host_file);
    tree_add(&run->tree, "/forks", REGULAR, 0600);
    atomic_store(&ends, false);
    for (size_t i = 0; i < THREADS; i++) {
        openers[i] = (struct opener){.run = run, .handles = &handles, .numbers = {any(&run->numbers)}};
        is(pthread_create(&openers[i].thread, NULL, open_and_close, &openers[i]), 0);
    }
    for (size_t i = 0; i < 4 + run->steps / 100; i++) {
        pid_t child = forked();
        if (child == 0)
            be_child(run, &handles);
        // The parent's own handles stay as they were.
        is(ironmap_pread(handles.of[FILE_], &byte, 1, 0), 0);
        wait_for(child);
    }
    atomic_store(&ends, true);
    for (size_t i = 0; i < THREADS; i++)
        is(pthread_join(openers[i].thread, NULL), 0);
    close_handles(&handles);
}
