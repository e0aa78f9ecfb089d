/* A plugin for QEMU's user mode that counts loads and stores, as the cheapest
 * thing that sees every access. Debian ships no header; the functions are
 * declared here (interface version 1, which every QEMU since 4.2 accepts). */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
	void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
	void (*)(unsigned, uint32_t, uint64_t, void *), int flags, int rw, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t accesses;

static void access_seen(unsigned cpu, uint32_t info, uint64_t address, void *data)
{
	(void)cpu, (void)info, (void)address, (void)data;
	accesses++;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i),
			access_seen, 0, 3, NULL);
}

static void over(qemu_plugin_id_t id, void *data)
{
	(void)id, (void)data;
	fprintf(stderr, "accesses %" PRIu64 "\n", accesses);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
	const void *info, int argc, char **argv)
{
	(void)info, (void)argc, (void)argv;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, over, NULL);
	return 0;
}
