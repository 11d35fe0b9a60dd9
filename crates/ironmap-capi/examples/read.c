// Prints a file of a volume: read VOLUME PATH
#include <fcntl.h>
#include <stdio.h>

#include <ironmap.h>

static int fail(const char *what) {
    struct ironmap_failure failure;
    if (ironmap_failure(NULL, &failure, sizeof failure) == 0)
        fprintf(stderr, "%s: %s\n", what, failure.message);
    return 1;
}

static int print(struct ironmap_volume *volume, const char *path) {
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    char memory[65536];
    uint64_t pos = 0;
    ptrdiff_t count;

    if (ironmap_volume_queue(volume, 0, &queue) < 0)
        return fail("queue");
    if (ironmap_open(queue, path, O_RDONLY, 0, &file) < 0) {
        int status = fail(path);
        ironmap_queue_free(queue);
        return status;
    }
    while ((count = ironmap_pread(file, memory, sizeof memory, pos)) > 0) {
        fwrite(memory, 1, (size_t)count, stdout);
        pos += (uint64_t)count;
    }
    int status = count < 0 ? fail(path) : 0;
    // Freeing the queue closes its files.
    ironmap_queue_free(queue);
    return status;
}

int main(int argc, char **argv) {
    struct ironmap_volume *volume;
    if (argc != 3)
        return 2;
    if (ironmap_volume_open(argv[1], NULL, NULL, 0, &volume) < 0)
        return fail(argv[1]);
    int status = print(volume, argv[2]);
    ironmap_volume_close(volume);
    return status;
}
