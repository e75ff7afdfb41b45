// SPDX-License-Identifier: MIT
#include "bpf.h"

int bpf_one(void)
{
	return 1;
}
