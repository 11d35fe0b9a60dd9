// The header alone is valid C99, C11 and C++17 without a warning, and its structures have the layout that the library expects.
#include <ironmap.h>

#ifdef __cplusplus
#define LAYOUT(condition) static_assert(condition, "layout")
#elif __STDC_VERSION__ >= 201112L
#define LAYOUT(condition) _Static_assert(condition, "layout")
#else
#define LAYOUT(condition) extern char layout[(condition) ? 1 : -1]
#endif

// The pointers of the two supported architectures have 64 bits.
LAYOUT(sizeof(struct ironmap_stat) == 128);
LAYOUT(sizeof(struct ironmap_time) == 16);
LAYOUT(sizeof(struct ironmap_dirent) == 272);
LAYOUT(sizeof(struct ironmap_failure) == 1200);
LAYOUT(sizeof(struct ironmap_completion) == 16);
LAYOUT(sizeof(struct ironmap_read) == 40);
LAYOUT(sizeof(struct ironmap_pool_read) == 32);
LAYOUT(sizeof(struct ironmap_volume_options) == 24);
LAYOUT(sizeof(struct ironmap_volume_info) == 80);
LAYOUT(sizeof(struct ironmap_check_report) == 56);
LAYOUT(sizeof(struct ironmap_host_report) == 272);
LAYOUT(sizeof(struct ironmap_finding) == 40);
LAYOUT(sizeof(struct ironmap_disk_options) == 48);
LAYOUT(sizeof(struct ironmap_disk_part) == 104);
LAYOUT(sizeof(struct ironmap_verity_options) == 40);
LAYOUT(sizeof(struct ironmap_verity_info) == 72);
LAYOUT(IRONMAP_O_ASSUME_NO_DEDUPE == 1 << 30);

int main(void) {
    return ironmap_version() == NULL;
}
