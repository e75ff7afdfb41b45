// SPDX-License-Identifier: MIT
#include <fake.h>

int start_kernel(void);
int fork_one(void);

int start_kernel(void)
{
	return fork_one();
}
