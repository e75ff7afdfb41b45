// SPDX-License-Identifier: GPL-2.0-only
//go:build ignore

/*
 * Moves what arrives at one socket to another one, through a sockmap or a
 * sockhash, and counts on which CPUs the kernel works on that other one.
 */
#include "patchbay.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} source SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} target_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} target_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} other SEC(".maps");

SEC("sk_skb/stream_verdict")
int to_map(struct __sk_buff *skb)
{
	return bpf_sk_redirect_map(skb, &target_map, 0, 0);
}

SEC("sk_skb/stream_verdict")
int to_hash(struct __sk_buff *skb)
{
	__u32 key = 0;

	return bpf_sk_redirect_hash(skb, &target_hash, &key, 0);
}

/* atomic64_t is a typedef of a structure without a name. */
typedef struct {
	__s64 counter;
} __core atomic64_t;

struct sock_common {
	atomic64_t skc_cookie;
} __core;

struct sock {
	struct sock_common __sk_common;
} __core;

struct delayed_work {
	int cpu;
} __core;

struct sk_psock {
	struct sock *sk;
	struct delayed_work work;
} __core;

#define MAX_CPUS 64

/* Whose work is counted, and how often which CPU began with it. */
__u64 cookie;
__u64 runs[MAX_CPUS];

/* BPF_FIELD_BYTE_OFFSET of __builtin_preserve_field_info */
#define FIELD_OFFSET 0

SEC("fentry/sk_psock_backlog")
int backlog(__u64 *ctx)
{
	/* The work is the first member of its delayed_work. */
	void *psock = (void *)ctx[0] -
		__builtin_preserve_field_info(((struct sk_psock *)0)->work, FIELD_OFFSET);
	struct sock *sk = NULL;
	__u64 got = 0;

	bpf_probe_read_kernel(&sk, sizeof(sk), &((struct sk_psock *)psock)->sk);
	bpf_probe_read_kernel(&got, sizeof(got), &sk->__sk_common.skc_cookie.counter);
	if (cookie && got == cookie)
		__sync_fetch_and_add(&runs[bpf_get_smp_processor_id() & (MAX_CPUS - 1)], 1);
	return 0;
}

/* An iterator that puts each socket of a map into another map, with flags. */
__u64 update_flags;
__s64 update_result;

SEC("iter/sockmap")
int put_other(struct bpf_iter__sockmap *ctx)
{
	__u32 key = 0;

	if (ctx->key && ctx->sk)
		update_result = bpf_map_update_elem(&other, &key, ctx->sk, update_flags);
	return 0;
}

char _license[] SEC("license") = "GPL";
