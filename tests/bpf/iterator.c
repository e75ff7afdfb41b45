// SPDX-License-Identifier: GPL-2.0-only
//go:build ignore

/*
 * An iterator that copies the sockets of a map into another one.
 * In the kernel tree: bpf_iter_sockmap.c.
 */
#include "patchbay.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} sock_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} sock_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} dst SEC(".maps");

__u32 elems;
__u32 socks;

SEC("iter/sockmap")
int copy(struct bpf_iter__sockmap *ctx)
{
	__u32 *key = ctx->key;
	void *sk = ctx->sk;
	__u32 own_key;
	long err;

	/* After the last element the program is called once more, without one. */
	if (!key)
		return 0;
	elems++;

	/* The key is in read-only memory, which the helpers do not take. */
	own_key = *key;
	if (sk) {
		socks++;
		return bpf_map_update_elem(&dst, &own_key, sk, BPF_ANY) != 0;
	}
	err = bpf_map_delete_elem(&dst, &own_key);
	return err && err != -ENOENT;
}

char _license[] SEC("license") = "GPL";
