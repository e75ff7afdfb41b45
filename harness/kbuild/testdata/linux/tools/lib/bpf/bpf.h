/* SPDX-License-Identifier: MIT */
int bpf_one(void);
