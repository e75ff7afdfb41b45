/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * All that the BPF programs of the tests need of the kernel and of libbpf.
 * The host's headers are not used: the objects must come out the same on every
 * machine. Numbers and layouts are UAPI (include/uapi/linux/bpf.h) and can not
 * change; kernel structures are marked for CO-RE relocation and list only the
 * members in use.
 */
#ifndef PATCHBAY_H
#define PATCHBAY_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;

#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __core __attribute__((preserve_access_index))

/* Map definitions: numbers are encoded as array sizes, for BTF. */
#define __uint(name, value) int (*name)[value]
#define __type(name, type) typeof(type) *name

/* enum bpf_map_type */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_SOCKMAP = 15,
	BPF_MAP_TYPE_SOCKHASH = 18,
	BPF_MAP_TYPE_SK_STORAGE = 24,
};

/* Flags of map creation, map update, sk_storage_get, redirection */
enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_F_INGRESS = 1,
};

enum sk_action { SK_DROP = 0, SK_PASS = 1 };

#define ENOENT 2

struct bpf_sock;

/* The context of sk_skb and tc programs, up to the members in use. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
};

/* The context of sk_msg programs. Pointers take 64 bits on every machine. */
struct sk_msg_md {
	__u64 data;
	__u64 data_end;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 size;
	struct bpf_sock *sk __attribute__((aligned(8)));
};

/* The context of sockops programs. */
struct bpf_sock_ops {
	__u32 op;
	__u32 args[4];
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 is_fullsock;
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 bpf_sock_ops_cb_flags;
	__u32 state;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 ecn_flags;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 segs_in;
	__u32 data_segs_in;
	__u32 segs_out;
	__u32 data_segs_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 sk_txhash;
	__u64 bytes_received;
	__u64 bytes_acked;
	struct bpf_sock *sk __attribute__((aligned(8)));
};

/* The context of iter/sockmap programs (net/core/sock_map.c). */
struct bpf_iter__sockmap {
	void *meta __attribute__((aligned(8)));
	void *map __attribute__((aligned(8)));
	void *key __attribute__((aligned(8)));
	void *sk __attribute__((aligned(8)));
};

struct task_struct {
	int tgid;
} __core;

/* Helpers, by their number in enum bpf_func_id. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static __u64 (*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_sk_redirect_map)(struct __sk_buff *skb, void *map, __u32 key, __u64 flags) = (void *)52;
static long (*bpf_msg_redirect_map)(struct sk_msg_md *msg, void *map, __u32 key, __u64 flags) = (void *)60;
static long (*bpf_msg_redirect_hash)(struct sk_msg_md *msg, void *map, void *key, __u64 flags) = (void *)71;
static long (*bpf_sk_redirect_hash)(struct __sk_buff *skb, void *map, void *key, __u64 flags) = (void *)72;
static long (*bpf_sk_release)(void *sk) = (void *)86;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*bpf_sk_storage_delete)(void *map, void *sk) = (void *)108;
static long (*bpf_probe_read_kernel)(void *dst, __u32 size, const void *unsafe) = (void *)113;

#endif
