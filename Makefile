# SPDX-License-Identifier: MIT
#
# make help lists the targets and variables. Values may hold spaces, except in
# SERIES and TESTS, which are lists; bin/patchbay takes anything.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# quote makes one shell word; home does what the shell does not do behind "=".
quote = '$(subst ','\'',$(1))'
home = $(1:~/%=$(HOME)/%)
flag = $(if $(2),$(1) $(call quote,$(call home,$(2))))
flags = $(foreach word,$(2),$(call flag,$(1),$(word)))

FLAGS := $(strip \
	$(call flag,--base,$(BASE)) $(call flag,--kdir,$(KDIR)) $(call flag,--rev,$(REV)) \
	$(call flags,--series,$(SERIES)) $(call flag,--config,$(CONFIG)))
RUN_FLAGS := $(strip $(call flags,--test,$(TESTS)) $(call flag,--out,$(OUT)) $(if $(V),--verbose))

# The stream of bench-harness, for benchstat.
BENCH ?= out/bench.txt
COUNT ?= 3

.PHONY: help
help: ## show this
	@printf 'Targets\n'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z-]*\):[^#]*## /  \1  /p' Makefile
	@printf '%s\n' '' 'Variables of vmtest and kernel' \
		'  BASE    known kernel (bin/patchbay list bases); default v6.12' \
		'  KDIR    your own kernel tree instead; it is only read' \
		'  REV     revision in KDIR; default is the tree as it stands' \
		'  SERIES  series, in order: name, folder, mbox, diff, or none' \
		'  CONFIG  vmconfig (bin/patchbay list configs); default default' \
		'  TESTS   suites, tests or sub-tests, by name or glob' \
		'  OUT     folder for the results; default out' \
		'  V=1     show the output of passing tests too' \
		'' 'Variables of bench-harness' \
		'  BENCH   file for the figures; default out/bench.txt' \
		'  COUNT   how often each is taken; default 3'

.PHONY: setup
setup: ## install what is missing on this machine
	@bin/setup

.PHONY: build
build: ## build bin/patchbay and the guest agent
	@go build -trimpath -o bin/patchbay ./harness/cmd/patchbay
	@CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/patchbay-agent ./harness/cmd/patchbay-agent

.PHONY: vmtest
vmtest: setup build ## build the kernel, boot it, run the tests
	@bin/patchbay run $(FLAGS) $(RUN_FLAGS)

.PHONY: kernel
kernel: setup build ## build the kernel and libbpf only, and print where they are
	@bin/patchbay build $(FLAGS)

.PHONY: unit
unit: ## unit tests with the race detector; no guest
	@go test -race ./...

.PHONY: lint
lint: ## gofumpt, vet, staticcheck, shellcheck, licences, go.mod, BPF objects, checkpatch
	@bin/lint

.PHONY: test
test: setup lint unit build ## lint, unit tests, vmtest, end-to-end tests on real kernels
	@bin/patchbay run
	@PATCHBAY_E2E=1 go test -count=1 -timeout 45m -run E2E ./harness/cmd/patchbay

.PHONY: bench-harness
bench-harness: setup build ## time boot, warm run and touch; PATCHBAY_BENCH_COLD=1 adds cold builds
	@mkdir -p "$$(dirname $(call quote,$(BENCH)))"
	@PATCHBAY_BENCH=1 go test -run '^$$' -bench . -benchtime 1x -count $(COUNT) -timeout 0 ./harness/cmd/patchbay >$(call quote,$(BENCH)) || { cat $(call quote,$(BENCH)); exit 1; }
	@cat $(call quote,$(BENCH))
	@go tool benchstat $(call quote,$(BENCH))

.PHONY: generate
generate: ## compile the BPF C of the tests again
	@go generate ./tests/...

.PHONY: clean
clean: ## delete binaries, results and the cache's build folders
	@if [ -x bin/patchbay ]; then bin/patchbay clean; fi
	@rm -rf bin/patchbay bin/patchbay-agent out
