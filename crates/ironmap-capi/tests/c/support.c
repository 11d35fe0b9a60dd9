// Numbers from the seed, and the end of the program after a fault.
#include "model.h"

#include <stdarg.h>
#include <unistd.h>

uint64_t any(struct numbers *numbers) {
    // SplitMix64.
    uint64_t mixed = numbers->state += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
}

size_t below(struct numbers *numbers, size_t limit) {
    return any(numbers) % limit;
}

bool one_in(struct numbers *numbers, size_t count) {
    return below(numbers, count) == 0;
}

void fill(struct numbers *numbers, void *memory, size_t len) {
    unsigned char *bytes = memory;
    uint64_t word = 0;
    for (size_t i = 0; i < len; i++) {
        if (i % 8 == 0)
            word = any(numbers);
        bytes[i] = (unsigned char)(word >> i % 8 * 8);
    }
}

void fail(const char *file, int line, const char *format, ...) {
    struct ironmap_failure failure;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (ironmap_failure(NULL, &failure, sizeof failure) != 0)
        strcpy(failure.message, "none");
    fprintf(stderr, "%s:%d: %s; the last failure of the thread: %s\n", file, line, text, failure.message);
    // Other threads may use the library, so nothing is freed.
    _exit(1);
}

void *memory_of(size_t len) {
    void *memory = malloc(len);
    holds(memory != NULL);
    return memory;
}

unsigned char host_byte(size_t position) {
    return (unsigned char)(position * 7 + position / 4096);
}
