/* A plugin for QEMU's emulator: which node serves each access of `updates` to its arena.
 *
 *   -plugin count.so,out=FILE,boundary=BYTES
 *
 * What the program loads and stores is seen by its virtual address, and told apart by the
 * physical one: node 1 begins at `boundary`. Each store to the program's bell writes one
 * line to FILE: the number of the ring, and the accesses that node 0 and node 1 have
 * served since the one before. The kernel's own accesses, when it moves a page, are not
 * counted: only code of the program is looked at.
 *
 * The declarations are those of the documented interface (docs/devel/tcg-plugins.rst),
 * which distributions do not package; PLUGIN_VERSION is the version of it that the
 * emulator wants. */

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

#ifndef PLUGIN_VERSION
#define PLUGIN_VERSION 1
#endif
#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
typedef uint32_t meminfo;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
enum { NO_REGISTERS = 0, LOADS_AND_STORES = 3 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id,
                                           void (*cb)(plugin_id, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t i);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn,
                                      void (*cb)(unsigned, meminfo, uint64_t, void *), int flags,
                                      int rw, void *data);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(meminfo info, uint64_t address);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *address);

EXPORT int qemu_plugin_version = PLUGIN_VERSION;

static uint64_t boundary, served[2];
static unsigned rings;
static FILE *out;

static void accessed(unsigned processor, meminfo info, uint64_t address, void *data) {
    (void)processor;
    (void)data;
    if (address - ARENA < ARENA_MOST) {
        struct qemu_plugin_hwaddr *at = qemu_plugin_get_hwaddr(info, address);
        if (at != NULL)
            served[qemu_plugin_hwaddr_phys_addr(at) >= boundary]++;
    } else if (address == BELL) {
        fprintf(out, "%u %" PRIu64 " %" PRIu64 "\n", rings++, served[0], served[1]);
        fflush(out);
        served[0] = served[1] = 0;
    }
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb) {
    (void)id;
    if (qemu_plugin_tb_vaddr(tb) >> 47 != 0)
        return;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), accessed, NO_REGISTERS,
                                         LOADS_AND_STORES, NULL);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0)
            out = fopen(argv[i] + 4, "w");
        else if (strncmp(argv[i], "boundary=", 9) == 0)
            boundary = strtoull(argv[i] + 9, NULL, 10);
    }
    if (out == NULL || boundary == 0) {
        fprintf(stderr, "count: out=FILE and boundary=BYTES are needed\n");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
