// SPDX-License-Identifier: MIT
#include <fake.h>

int fork_one(void);
int skmsg(void);

int fork_one(void)
{
	return skmsg();
}
