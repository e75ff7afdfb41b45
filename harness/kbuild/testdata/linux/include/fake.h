/* SPDX-License-Identifier: MIT */
#define FAKE 1
