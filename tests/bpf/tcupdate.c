// SPDX-License-Identifier: GPL-2.0-only
//go:build ignore

/*
 * A tc program that copies a socket between maps. Kernels newer than 6.12 no
 * longer load it. In the kernel tree: test_sockmap_update.c.
 */
#include "patchbay.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} src SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dst_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dst_hash SEC(".maps");

static __always_inline int copy(void *dst)
{
	__u32 key = 0;
	void *sk = bpf_map_lookup_elem(&src, &key);
	long err;

	if (!sk)
		return SK_DROP;
	err = bpf_map_update_elem(dst, &key, sk, BPF_ANY);
	bpf_sk_release(sk);
	return err ? SK_DROP : SK_PASS;
}

SEC("tc")
int copy_to_map(struct __sk_buff *skb __attribute__((unused)))
{
	return copy(&dst_map);
}

SEC("tc")
int copy_to_hash(struct __sk_buff *skb __attribute__((unused)))
{
	return copy(&dst_hash);
}

char _license[] SEC("license") = "GPL";
