// SPDX-License-Identifier: GPL-2.0-only
//go:build ignore

/*
 * Verdict programs of every attach type, and maps to attach them to.
 * In the kernel tree: test_sockmap_pass_prog.c, test_sockmap_drop_prog.c,
 * test_sockmap_skb_verdict_attach.c, test_sockmap_progs_query.c.
 */
#include "patchbay.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 20);
	__type(key, __u32);
	__type(value, __u64);
} rx SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 20);
	__type(key, __u32);
	__type(value, __u64);
} tx SEC(".maps");

/* What the programs did: a test must be able to prove that they ran. */
__u64 pass_bytes;
__u64 clone_bytes;
__u64 drop_bytes;

SEC("sk_skb/stream_verdict")
int stream_pass(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&pass_bytes, skb->len);
	return SK_PASS;
}

SEC("sk_skb/stream_verdict")
int stream_pass_clone(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&clone_bytes, skb->len);
	return SK_PASS;
}

SEC("sk_skb/stream_parser")
int stream_parse(struct __sk_buff *skb)
{
	return skb->len;
}

/* The attach type is left open: any of the sk_skb ones will do. */
SEC("sk_skb")
int skb_drop(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&drop_bytes, skb->len);
	return SK_DROP;
}

SEC("sk_skb/verdict")
int skb_verdict(struct __sk_buff *skb __attribute__((unused)))
{
	return SK_DROP;
}

SEC("sk_msg")
int msg_drop(struct sk_msg_md *msg __attribute__((unused)))
{
	return SK_DROP;
}

char _license[] SEC("license") = "GPL";
