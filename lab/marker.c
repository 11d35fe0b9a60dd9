// A plugin for QEMU's emulator: counts what the guest executes between two markers, exactly.
//
// A marker is an instruction that does nothing (lab/reads/src/marker.rs). Each window is a line "USER KERNEL" of the output file:
// instructions at addresses of programs and of the kernel. One processor only. The prototypes are those of QEMU's documented
// plugin interface, version 1, so that no header is needed.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*tb_translated)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*executed)(unsigned cpu, void *userdata);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_translated);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int operation, void *counter, uint64_t add);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, executed, int flags, void *userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

#define EXPORT __attribute__((visibility("default")))
#define ADD_U64 0
#define NO_REGISTERS 0

// nopl 0x49720000(%rax,%rax), its lowest byte 1 for the begin and 2 for the end of a window.
static const uint8_t MARKER[8] = {0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x72, 0x49};
enum { WHICH = 4 };

EXPORT int qemu_plugin_version = 1;
static uint64_t count[2], at_begin[2]; // programs, kernel
static FILE *out;

static void begin(unsigned cpu, void *userdata) { memcpy(at_begin, count, sizeof count); }

static void end(unsigned cpu, void *userdata) {
    fprintf(out, "%lu %lu\n", count[0] - at_begin[0], count[1] - at_begin[1]);
    fflush(out);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    size_t n = qemu_plugin_tb_n_insns(block);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        if (qemu_plugin_insn_size(insn) != sizeof MARKER) continue;
        uint8_t bytes[sizeof MARKER];
        memcpy(bytes, qemu_plugin_insn_data(insn), sizeof bytes);
        uint8_t which = bytes[WHICH];
        bytes[WHICH] = 0;
        if (memcmp(bytes, MARKER, sizeof bytes) == 0 && (which == 1 || which == 2))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, which == 1 ? begin : end, NO_REGISTERS, NULL);
    }
    // The kernel lives in the upper half.
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &count[qemu_plugin_tb_vaddr(block) >> 63], n);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "out=", 4) == 0) out = fopen(argv[i] + 4, "w");
    if (!out) return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
