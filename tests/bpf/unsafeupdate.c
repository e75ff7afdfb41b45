// SPDX-License-Identifier: GPL-2.0-only
//go:build ignore

/*
 * A sockops program runs with the socket locked and must not update a map with
 * it by the general helper: the verifier refuses it.
 * In the kernel tree: test_sockmap_invalid_update.c.
 */
#include "patchbay.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} map SEC(".maps");

SEC("sockops")
int update_map(struct bpf_sock_ops *ops)
{
	__u32 key = 0;

	if (ops->sk)
		bpf_map_update_elem(&map, &key, ops->sk, BPF_ANY);
	return 0;
}

char _license[] SEC("license") = "GPL";
