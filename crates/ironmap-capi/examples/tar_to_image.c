// Builds an ext4 image from a tar archive on standard input, which may be compressed with gzip or zstd:
//
//   tar_to_image IMAGE [LABEL] <ARCHIVE
#include <errno.h>
#include <ironmap.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Ends the program if a call has failed.
static void check(int result) {
    struct ironmap_failure failure;
    if (result >= 0)
        return;
    if (ironmap_failure(NULL, &failure, sizeof failure) == 0)
        fprintf(stderr, "tar_to_image: %s\n", failure.message);
    exit(1);
}

// The library calls this for the bytes of the archive, in any thread but in one at a time.
static ptrdiff_t read_input(void *arg, void *memory, size_t len) {
    ssize_t count;
    (void)arg;
    do
        count = read(STDIN_FILENO, memory, len);
    while (count < 0 && errno == EINTR);
    return count < 0 ? -errno : count;
}

struct totals {
    uint64_t files, bytes;
};

// A return value other than 0 would end the build.
static int count(void *arg, uint64_t files, uint64_t bytes) {
    *(struct totals *)arg = (struct totals){files, bytes};
    return 0;
}

int main(int argc, char **argv) {
    struct ironmap_image *image;
    struct totals totals = {0, 0};
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: %s IMAGE [LABEL] <ARCHIVE\n", argv[0]);
        return 2;
    }
    check(ironmap_image_new(&image));
    check(ironmap_image_add_tar(image, "standard input", read_input, NULL, 0));
    if (argc == 3)
        check(ironmap_image_label(image, argv[2]));
    // The image appears when it is complete. An existing file system is not replaced.
    check(ironmap_image_build(image, argv[1], count, &totals));
    check(ironmap_image_free(image));
    printf("%llu files, %llu bytes\n", (unsigned long long)totals.files, (unsigned long long)totals.bytes);
    return 0;
}
