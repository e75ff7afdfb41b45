// SPDX-License-Identifier: GPL-2.0-only

// Package bpf holds the BPF programs and maps of the suites, as C and compiled.
//
// They are C through bpf2go, not cilium's assembler, because what is tested
// lives in C: ELF section names choose the expected attach type that updating
// a link looks at, BTF describes maps and relocates accesses to kernel structures, and
// whoever knows the kernel's own selftests recognises the programs.
//
// The objects are committed, so running the tests needs no clang. After a
// change of a C file `go generate ./tests/...` makes them anew; it needs
// clang-19 and llvm-19, and comes to the same bytes everywhere, because
// patchbay.h is the only header and no path of the machine gets in.
// The objects are little endian only, like every guest.
package bpf

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-Wall -Wextra -Werror" Verdict verdict.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-Wall -Wextra -Werror" Affinity affinity.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-Wall -Wextra -Werror" Skmsg skmsg.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-Wall -Wextra -Werror" Iterator iterator.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-Wall -Wextra -Werror" TcUpdate tcupdate.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-Wall -Wextra -Werror" UnsafeUpdate unsafeupdate.c
//go:generate sh -c "sed -i '1i // SPDX-License-Identifier: GPL-2.0-only\\n' *_bpfel.go"
