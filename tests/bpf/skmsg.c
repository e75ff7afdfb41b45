// SPDX-License-Identifier: GPL-2.0-only
//go:build ignore

/*
 * sk_msg programs that use socket storage and look at the sending task.
 * In the kernel tree: test_skmsg_load_helpers.c.
 */
#include "patchbay.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} sock_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} sock_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} storage SEC(".maps");

/* Messages that passed all checks of a program. */
__u64 passed;

static __always_inline int check_sender(struct sk_msg_md *msg)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u32 tgid = 0;
	__u64 *stored;

	stored = bpf_sk_storage_get(&storage, msg->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored)
		return SK_DROP;
	*stored = pid;
	if (bpf_probe_read_kernel(&tgid, sizeof(tgid), &task->tgid) || tgid != *stored)
		return SK_DROP;
	if (bpf_sk_storage_delete(&storage, msg->sk))
		return SK_DROP;
	__sync_fetch_and_add(&passed, 1);
	return SK_PASS;
}

SEC("sk_msg")
int msg_verdict(struct sk_msg_md *msg)
{
	return check_sender(msg);
}

SEC("sk_msg")
int msg_verdict_clone(struct sk_msg_md *msg)
{
	return check_sender(msg);
}

SEC("sk_msg")
int msg_verdict_clone2(struct sk_msg_md *msg)
{
	return check_sender(msg);
}

/* Of another type than a link of the above: must not replace its program. */
SEC("sk_skb/stream_verdict")
int stream_verdict(struct __sk_buff *skb __attribute__((unused)))
{
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
