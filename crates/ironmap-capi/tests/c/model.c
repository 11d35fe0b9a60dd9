// Random calls of the C library, against a model in memory:
//
//   model IMAGE HOST_FILE SEED STEPS [PART...]
//
// IMAGE is a new ext4 image, HOST_FILE a file whose content is that of `host_byte`. The volume is opened again after the calls, and compared
// with the model. Without a PART all parts run: wrong, names, files, buffers, threads, forks, signals.
#include "model.h"

#include <unistd.h>

static void open_volume(struct run *run, bool write) {
    struct ironmap_volume_options options = {.write = write, .commit_ms = 50};
    is(ironmap_volume_open(run->image, NULL, &options, sizeof options, &run->volume), 0);
}

static void run_all_names(struct run *run) {
    run_names(run, run->steps);
}

static const struct {
    const char *name;
    void (*run)(struct run *run);
} parts[] = {
    {"wrong", run_wrong_uses}, {"names", run_all_names}, {"files", run_files},     {"buffers", run_buffers},
    {"threads", run_threads},  {"forks", run_forks},     {"signals", run_signals}, {"ends", run_ends},
};

static bool is_chosen(const char *name, char **chosen) {
    if (!*chosen)
        return true;
    for (; *chosen; chosen++)
        if (strcmp(name, *chosen) == 0)
            return true;
    return false;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s IMAGE HOST_FILE SEED STEPS [PART...]\n", argv[0]);
        return 2;
    }
    struct run run = {.image = argv[1], .host_file = argv[2], .steps = strtoull(argv[4], NULL, 0)};
    uint64_t seed = strtoull(argv[3], NULL, 0);
    printf("model: seed %llu, %zu steps, libironmap %s\n", (unsigned long long)seed, run.steps, ironmap_version());
    fflush(stdout);
    alarm(3600);
    tree_init(&run.tree);
    open_volume(&run, true);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!is_chosen(parts[i].name, argv + 5))
            continue;
        // Each part has its own random numbers, so it does the same if it runs alone.
        run.numbers.state = seed * 64 + i;
        parts[i].run(&run);
        tree_compare(&run.tree, run.volume);
        is(ironmap_volume_close(run.volume), 0);
        open_volume(&run, i % 2 == 0);
        tree_compare(&run.tree, run.volume);
        if (i % 2 != 0) {
            is(ironmap_volume_close(run.volume), 0);
            open_volume(&run, true);
        }
        printf("model: %s passed\n", parts[i].name);
        fflush(stdout);
    }
    is(ironmap_volume_close(run.volume), 0);
    is(ironmap_volume_close(run.volume), -EBADF);
    tree_free(&run.tree);
    return 0;
}
