# Terrace: `make demo` shows it, `make test` tests it, `make` lists the rest.

SHELL := /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Rustup's place, for shells that have not read its environment.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Only what matches runs: make hazards ONLY=fork
ONLY ?=
# How often each hazard strikes in `make test`, and in `make test-long`. A quarter to a half of the
# times under the live policies by turns (of 16, eight; each program begins with another), the others
# under the default.
HAZARD_REPEAT ?= 16
HAZARD_REPEAT_LONG ?= 2000
# How long `make sweep` takes.
SWEEP_SECONDS ?= 1800
SWEEP_SECONDS_SHORT ?= 15
# How long `make soak` takes; and in `make test`.
SOAK_SECONDS ?= 1800
SOAK_SECONDS_SHORT ?= 15
# How many times as many random cases of each property `make properties` takes as `make test`.
PROPERTY_TIMES ?= 40
# What of the pager Miri can run: what neither asks the kernel nor calls C.
MIRI_MODULES ?= histogram:: pinned_pages:: page_state:: notes:: spin:: slabs:: \
    spill::aged:: spill::location:: spill::segments::
# Leaks are not looked for there: what the pager maps lives as long as the process.
MIRI_PAGER := -Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks
# Random cases of each property there.
MIRI_CASES ?= 4
# `short` for a quarter of the foreign tests.
FOREIGN ?=

# Where this is not empty, what this machine cannot test is a failure. Continuous integration
# sets CI; TERRACE_UNSUPPORTED_OK=1 allows it all the same. The tests look at both themselves.
MUST_RUN := $(if $(filter 1,$(TERRACE_UNSUPPORTED_OK)),,$(CI))

TARGET := $(or $(CARGO_TARGET_DIR),target)
TERRACE := $(TARGET)/release/terrace
# What hangs is shown, and ended, after so many seconds without a word.
WATCHED := scripts/watched.sh 240
WITH_UFFD := $(WATCHED) scripts/with-uffd.sh
# Those whose own limit is ten minutes tell more of what hangs than the watcher does.
PATIENT := scripts/watched.sh 660 scripts/with-uffd.sh
# The whole workspace, though the targets are in one crate of it: dependencies would be
# built once more with the features that this crate alone wants.
TESTS := $(CARGO) test --locked --workspace

.DEFAULT_GOAL := help
.PHONY: help
help: ## List what can be made.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: build
build: ## Build the command and the library.
	@scripts/setup.sh build
	$(CARGO) build --locked --release -p terrace-cli -p terrace-preload -p terrace-recorder

.PHONY: demo
demo: ## Run redis in a quarter of its memory and compare; installs what is missing.
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/with-uffd.sh scripts/demo.sh $(TERRACE)

.PHONY: test
test: ## Every test, in its short form; installs what is missing.
	@scripts/setup.sh test
	@# Compilers have parts in which one processor works alone, downloads wait: all of that at once. What
	@# clippy refuses is not built for tests.
	@# Two programs at once are done sooner; that their times are not to be compared then is no matter.
	+@MAKE="$(MAKE)" scripts/phases.sh "lint built-tests & build & deny & fetch FOREIGN=short" unit hazards "sweep SWEEP_SECONDS=$(SWEEP_SECONDS_SHORT)" \
	    "hazards-kernel OUTSIDE=short" "programs PROGRAM_JOBS=2" "programs-kernel-short" "soak SOAK_SECONDS=$(SOAK_SECONDS_SHORT)" "foreign FOREIGN=short" \
	    "foreign-kernel FOREIGN=short ONLY=postgresql" \
	    filesystems-short guest-short
	@echo "make test: everything passed"

.PHONY: properties
properties: ## Every property, with many times the random cases that `make test` takes.
	@# 256 cases are what each property takes its share of.
	PROPTEST_CASES=$$((256 * $(PROPERTY_TIMES))) $(TESTS) --release --no-fail-fast --lib --exclude terrace-models \
	    --test policy_properties --test models --test economist --test files --test live \
	    --test machine_files --test world

.PHONY: test-long
test-long: ## The same for hours: more repetitions, more fuzzing, both policies.
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory crash-long
	$(CARGO) test --locked --release -p terrace-cli --test crash -- --ignored
	$(CARGO) test --locked --release -p terrace-cli --test options -- --ignored
	@$(MAKE) --no-print-directory properties
	FUZZ_ITERATIONS=1000000 $(TESTS) --release --test fuzz_smoke
	@$(MAKE) --no-print-directory hazards HAZARD_REPEAT=$(HAZARD_REPEAT_LONG)
	@$(MAKE) --no-print-directory sweep
	HAZARD_RUN_ARGS="--policy first-touch" \
	    $(MAKE) --no-print-directory hazards HAZARD_REPEAT=$(HAZARD_REPEAT_LONG)
	@$(MAKE) --no-print-directory programs
	@$(MAKE) --no-print-directory hazards-kernel
	@$(MAKE) --no-print-directory programs-kernel
	@$(MAKE) --no-print-directory foreign-kernel

.PHONY: lint
lint: ## Formatting, clippy, links in documentation, and shellcheck.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@# Those that are not run by default are not among all targets, either.
	@$(CARGO) clippy -q --locked --workspace --test hazards --test programs --test foreign \
	    --test soak --test kernel_hazards -- -D warnings
	@# The table of a crate's files names modules that are not public.
	@RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc -q --locked \
	    --workspace --no-deps --document-private-items
	@if command -v shellcheck >/dev/null; then \
	    echo "shellcheck scripts"; shellcheck scripts/*.sh tests/guest/*.sh tests/guest/tests/*.sh \
	        tests/guest/host/*.sh .ci/run \
	        bench/nodes/run.sh bench/nodes/init bench/live/tails.sh bench/live/tails_programs.sh bench/live/memory.sh bench/live/host.sh bench/cbmm/*.sh bench/families/*.sh bench/kloc/*.sh bench/dapper/*.sh bench/sim/kernel_speed.sh tests/volume/*.sh; \
	else \
	    echo "shellcheck is not installed: scripts NOT checked"; [ -z "$(MUST_RUN)" ]; \
	fi

# What later phases of `make test` install and download, while compilers run. Whatever fails here is
# tried again by the phase that needs it, which says so. (In a shell that stops at the first error: behind
# `||` none does, and half a kernel would be kept for a whole one.)
.PHONY: fetch
fetch:
	@FOREIGN=$(FOREIGN) scripts/setup.sh foreign || true
	@scripts/setup.sh guest || true
	@scripts/redis-tests.sh $(abspath $(TARGET))/redis-tests || true
	@bash -euo pipefail -c '. tests/guest/kernel.sh; find_kernel' || true

.PHONY: deny
deny: ## Licences and sources of every dependency.
	scripts/deny.sh

# Neither examples, which clippy has looked at, nor code in comments, of which there is none (a test looks).
.PHONY: built-tests
built-tests:
	$(TESTS) --tests --no-run

.PHONY: unit
unit: build built-tests ## Unit, property and command-line tests of every crate.
	@# Built before they are watched: a compiler may well say nothing for minutes.
	TERRACE_BIN=$(abspath $(TERRACE)) $(WITH_UFFD) scripts/unit.sh $(TESTS) --tests --no-fail-fast

.PHONY: miri
miri: ## The pager's data structures under Miri: undefined behaviour, weak memory (needs nightly).
	MIRIFLAGS="$(MIRI_PAGER)" PROPTEST_CASES=$(MIRI_CASES) \
	    $(CARGO) +nightly miri test --locked -p terrace-live --lib -- $(MIRI_MODULES)
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=$(MIRI_CASES) \
	    $(CARGO) +nightly miri test --locked -p terrace-core --lib

.PHONY: hazards
hazards: build ## The C hazard suite; ONLY=name, HAZARD_REPEAT=n and (forks) HAZARD_TIMES=n choose.
	HAZARD_REPEAT=$(HAZARD_REPEAT) TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(WITH_UFFD) $(TESTS) --test hazards -- $(ONLY)

.PHONY: hazards-kernel
hazards-kernel: build ## Hazards of the kernel engine: forks, groups, full swap, kills (root); OUTSIDE=short, ONLY=name choose.
	@OUTSIDE=$(OUTSIDE) TERRACE_BIN=$(abspath $(TERRACE)) $(WATCHED) $(TESTS) --test kernel_hazards -- $(ONLY)

.PHONY: sweep
sweep: build ## Hazards in which something of ours breaks at random, for SWEEP_SECONDS (1800).
	HAZARD_SWEEP=$(SWEEP_SECONDS) TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(WITH_UFFD) $(TESTS) --test hazards

.PHONY: programs
programs: build ## Real programs in a quarter of their memory; ONLY=name and PROGRAM_JOBS=n choose.
	TERRACE_BIN=$(abspath $(TERRACE)) $(PATIENT) $(TESTS) --test programs -- $(ONLY)

.PHONY: programs-kernel
programs-kernel: build ## The same programs under the kernel engine (root).
	PROGRAM_ENGINES=kernel TERRACE_BIN=$(abspath $(TERRACE)) $(TESTS) --test programs -- $(ONLY)

# What `make test` runs of it: a compiler with its children, a server, a JVM, and what fills memory
# faster than the engine empties it.
.PHONY: programs-kernel-short
programs-kernel-short: build
	@for program in gcc redis java zstd; do \
	    PROGRAM_ENGINES=kernel TERRACE_BIN=$(abspath $(TERRACE)) \
	        $(TESTS) --test programs -- "programs::$$program " || exit 1; \
	done

.PHONY: soak
soak: build ## Real programs under budgets that change at random, for SOAK_SECONDS (1800).
	SOAK_SECONDS=$(SOAK_SECONDS) TERRACE_BIN=$(abspath $(TERRACE)) $(PATIENT) $(TESTS) --test soak

# How long content is compared in `make soak-kloc`.
KLOC_SOAK_SECONDS ?= 900

.PHONY: soak-kloc
soak-kloc: build ## Content of files while terrace kloc drops pages of theirs, for KLOC_SOAK_SECONDS (900; root).
	KLOC_SOAK_SECONDS=$(KLOC_SOAK_SECONDS) $(TESTS) --test kloc -- --nocapture no_content_changes

.PHONY: foreign
foreign: build ## CPython's, redis's and stress-ng's tests, a database, a browser, a JVM, cargo; FOREIGN=short, ONLY=name choose.
	@FOREIGN=$(FOREIGN) scripts/setup.sh foreign || echo "setup.sh foreign failed" >&2
	@scripts/redis-tests.sh $(abspath $(TARGET))/redis-tests || \
	    echo "redis's test suite could not be fetched: NOT run" >&2
	FOREIGN=$(FOREIGN) TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(PATIENT) $(TESTS) --test foreign -- $(ONLY)

# The same programs under the kernel engine (root). In the short form a database alone: the rest takes
# minutes, and `programs-kernel-short` has a compiler, a server and a JVM.
.PHONY: foreign-kernel
foreign-kernel: build ## The foreign set under the kernel engine (root); FOREIGN=short, ONLY=name choose.
	@FOREIGN=$(FOREIGN) scripts/setup.sh foreign || echo "setup.sh foreign failed" >&2
	FOREIGN=$(FOREIGN) FOREIGN_ENGINES=kernel TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(TESTS) --test foreign -- $(ONLY)

.PHONY: guest
guest: build ## Attach, NUMA tiers, provision in emulated guests; ONLY="name …" chooses.
	@scripts/setup.sh guest
	$(CARGO) build --locked --release -p terrace-kloc-live --example move_to_node
	tests/guest/guest.sh $(TERRACE) $(ONLY)

.PHONY: guest-f2fs
guest-f2fs: build ## F2FS on a volume, in a guest whose kernel has it (fetches 100 MB).
	@scripts/setup.sh guest
	GUEST_FLAVOUR=full tests/guest/guest.sh $(TERRACE) volume_f2fs

.PHONY: guest-6.1
guest-6.1: build ## terrace kloc in a guest with Debian 12's own kernel, 6.1.
	@scripts/setup.sh guest
	GUEST_SERIES=6.1 tests/guest/guest.sh $(TERRACE) kloc

# The part of it that `make test` runs: what tests/guest/tests.list marks as short. Where no
# guest can be had that is said loudly, and is a failure only where everything must be tested;
# a guest whose tests fail is one anywhere.
.PHONY: guest-short
guest-short: build
	@scripts/setup.sh guest || echo "setup.sh guest failed" >&2
	@# A test in an emulated guest says nothing for minutes where the machine is busy.
	@GUEST_JOBS=2 scripts/watched.sh 600 tests/guest/guest.sh $(TERRACE) --short; status=$$?; \
	if [ $$status -eq 77 ] && [ -z "$(MUST_RUN)" ]; then \
	    echo "SKIPPED: the tests in guests with several NUMA nodes (the reason is above)"; \
	else exit $$status; fi

.PHONY: bench
bench: bench-live bench-programs bench-sim bench-kernel ## Measure everything beside its peers; writes nothing, prints tables.

# How often everything runs.
BENCH_ROUNDS ?= 3

.PHONY: bench-live
bench-live: build ## GUPS under terrace run beside kernel swap on zram, with aims; and where all fits (root; 20 minutes a round).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh pager $(TARGET)/release --seconds 15,4,2 --rounds $(BENCH_ROUNDS)
	bench/live/run.sh pager $(TARGET)/release --seconds 15,4,2 --rounds $(BENCH_ROUNDS) \
	    --hot 512MiB --equal-dram
	bench/live/run.sh fits $(TARGET)/release

.PHONY: bench-huge
bench-huge: build ## A first touch of memory that is walked through, with and without huge pages (2 minutes).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh walk $(TARGET)/release

# How often each program runs under each system.
TAILS_ROUNDS ?= 1
.PHONY: bench-tails
bench-tails: build ## First touches to the greatest, and real programs, fragmented and not, by THP setting and under terrace run with a profile (root; 25 minutes; TAILS_ROUNDS=short).
	@scripts/setup.sh bench-tails || echo "setup.sh bench-tails failed: what is missing is left out" >&2
	$(CARGO) build --locked --release -p terrace-bench
	@# The sizes of the table in docs/profile.md.
	bench/live/tails.sh $(abspath $(TARGET))/release $(if $(filter short,$(TAILS_ROUNDS)),64 2 1,256 10)
	bench/live/tails_programs.sh $(abspath $(TARGET))/release $(TAILS_ROUNDS)

.PHONY: bench-bound
bench-bound: build ## How fast a pager in user space could be at best, beside kernel swap on zram (root; 5 minutes).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh bound $(TARGET)/release

.PHONY: bench-govern
bench-govern: build ## What `terrace govern` forecasts, and then saves, of eight programs (root; 40 minutes a round; BENCH_ROUNDS=short).
	bench/live/govern.sh $(abspath $(TERRACE)) $(BENCH_ROUNDS)

.PHONY: bench-engines
bench-engines: build ## The two engines beside kernel swap on zram alone (root; 10 minutes a round; BENCH_ROUNDS=short).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/engines.sh $(TARGET)/release $(BENCH_ROUNDS)

.PHONY: bench-peers
bench-peers: build ## The same beside zswap and beside a plain swap file (needs root; 10 minutes).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh pager $(TARGET)/release --seconds 15,4,2 --hot 512MiB --peer zswap
	bench/live/run.sh pager $(TARGET)/release --seconds 15,4,2 --hot 512MiB --peer file

.PHONY: bench-busy
bench-busy: build ## The same beside zram and four programs that only compute (needs root; 6 minutes a round).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh pager $(TARGET)/release --seconds 15,4,2 --hot 512MiB,1536MiB --busy 4 \
	    --rounds $(BENCH_ROUNDS)

.PHONY: bench-programs
bench-programs: build ## Real programs in a half and a quarter of their memory: plain, zram, both engines (root; 25 minutes a round).
	@scripts/setup.sh bench || echo "setup.sh bench failed: what is missing is named below" >&2
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh programs $(TARGET)/release --rounds $(BENCH_ROUNDS) --share 0.5,0.25 \
	    --packages $(TARGET)/bench-python/bin $(PROGRAM_OPTIONS)

.PHONY: bench-kloc
bench-kloc: build ## terrace kloc: cost of its hooks beside fanotify; hot misses beside the kernel, drop-on-close, O_DIRECT (root; 10 minutes).
	$(CARGO) build --locked --release -p terrace-kloc-live --example kloc_bench
	bench/kloc/run.sh $(TARGET)/release

.PHONY: bench-kloc-rocksdb
bench-kloc-rocksdb: build ## RocksDB's db_bench in a small control group, without and with terrace kloc (root; 15 minutes).
	@scripts/setup.sh bench-kloc
	bench/kloc/rocksdb.sh $(TARGET)/release

.PHONY: record-klocs
record-klocs: build ## Record the I/O calls of KLOCs' five programs to $(TARGET)/kloc, to be replayed (root, tracefs, ext4; 10 minutes).
	@scripts/setup.sh bench-kloc-record || echo "setup.sh bench-kloc-record failed: what is missing is left out" >&2
	bench/kloc/record.sh $(TERRACE) $(TARGET)/kloc

# Under GUEST_SERIES=6.1 by Debian 12's own kernel.
.PHONY: bench-kloc-guest
bench-kloc-guest: build ## Hot misses beside a stream by the kernel's classic lists and MGLRU, in an emulated guest (20 minutes).
	@scripts/setup.sh guest
	$(CARGO) build --locked --release -p terrace-kloc-live --example kloc_bench
	VERBOSE=1 GUEST_TIMEOUT=3600 GUEST_TEST_LIMIT=3000 tests/guest/guest.sh $(TARGET)/release/terrace kloc_lru

.PHONY: bench-nodes
bench-nodes: build ## terrace attach beside the kernel's own NUMA tiering, in an emulated guest (18 boots).
	@scripts/setup.sh guest >&2
	@bench/nodes/run.sh $(TERRACE) --rounds $(BENCH_ROUNDS)

.PHONY: bench-patterns
bench-patterns: ## How often policies that see faults alone miss, beside LRU and the optimum (4 minutes).
	$(CARGO) run --locked --release -p terrace-policy --example patterns

.PHONY: bench-dram
bench-dram: ## Requests a second of the memory timing model.
	$(CARGO) run --locked --release -p terrace-dram --example dram_speed

.PHONY: record-kindle
record-kindle: build ## Record Kindle's programs to $(TARGET)/kindle, to be replayed (needs qemu-user).
	bench/kindle/record.sh $(TERRACE) $(TARGET)/kindle

.PHONY: record-dapper
record-dapper: build ## Record real programs for Dapper's mixes to $(TARGET)/dapper, to be replayed (needs qemu-user; 5 minutes).
	@scripts/setup.sh bench-dapper || echo "setup.sh bench-dapper failed: what is missing is left out" >&2
	bench/dapper/record.sh $(TERRACE) $(TARGET)/dapper

.PHONY: crash-long
crash-long: ## More than 10 000 crash points of random programs.
	CRASH_PROGRAMS=120 CRASH_POINTS=10000 \
	    $(CARGO) test --locked --release -p terrace-persist --test crash -- --nocapture

.PHONY: volume-long
volume-long: build ## Volumes: a million power failures, 300 kills, file systems, the server killed under them (root; minutes).
	$(CARGO) test --locked --release -p terrace-volume --test crash -- --ignored --nocapture
	VOLUME_KILLS=300 $(CARGO) test --locked --release -p terrace-volume --test killed -- --nocapture
	@$(MAKE) --no-print-directory filesystems

.PHONY: filesystems
filesystems: build ## ext4, xfs and btrfs on a volume, databases, a full disk, the server killed under them (root; 2 minutes).
	@scripts/setup.sh filesystems
	tests/volume/filesystems.sh $(TERRACE)

# What `make test` runs of it: ext4 alone, and a smaller tree.
.PHONY: filesystems-short
filesystems-short: build
	@$(WATCHED) tests/volume/filesystems.sh $(TERRACE) --short; status=$$?; \
	if [ $$status -eq 77 ] && [ -z "$(MUST_RUN)" ]; then \
	    echo "SKIPPED: file systems on a volume (the reason is above)"; \
	else exit $$status; fi

.PHONY: bench-volume
bench-volume: build ## Volumes beside libpmemblk, nbdkit, qemu-nbd and a loop device (root; 2 minutes).
	@scripts/setup.sh bench-volume
	$(TERRACE) volume bench --like-dax --peers --served --depth 1,4,16 /dev/shm

.PHONY: bench-volume-bound
bench-volume-bound: ## What memory alone allows a volume: copies, entries and a scan of a map, in C (half a minute).
	@mkdir -p $(TARGET)
	cc -O2 -Wall bench/mechanisms/volume.c -o $(TARGET)/volume-bound
	$(TARGET)/volume-bound /dev/shm

.PHONY: bench-btt
bench-btt: build ## ext4 on a volume beside ext4 on the kernel's BTT, as ratios, in an emulated guest (minutes).
	@scripts/setup.sh guest
	VERBOSE=1 tests/guest/guest.sh $(TERRACE) volume_beside_btt

.PHONY: validate
validate: build ## Ours beside references, from runs made now: ten parts, exit code 1 if a row fails.
	$(TERRACE) validate

.PHONY: validate-memory
validate-memory: ## Memory timing beside formulas and published figures.
	$(CARGO) run --locked --release -p terrace-dram --example validate_memory

.PHONY: validate-caches
validate-caches: ## Cache misses beside cachegrind's, on real programs (needs valgrind).
	$(CARGO) run --locked --release -p terrace-sim --example validate_caches

.PHONY: validate-orderings
validate-orderings: ## Which policy beats which, beside what papers say (half a minute).
	$(CARGO) run --locked --release -p terrace-sim --example orderings

.PHONY: bench-sim
bench-sim: build ## Speed of the simulator beside cachegrind, lackey and QEMU, in the same run.
	$(CARGO) build --locked --release -p terrace-sim --example exact_speed
	$(CARGO) build --locked --release -p terrace-dram --example dram_speed
	bench/sim/exact_speed.sh $(TARGET)/release

.PHONY: bench-kernel
bench-kernel: ## Simulated calls for I/O a second beside the exact engine and the running kernel; linearity (3 minutes).
	$(CARGO) build --locked --release -p terrace-sim --example kernel_speed --example exact_speed
	bench/sim/kernel_speed.sh $(TARGET)/release

# Seconds a target, and which.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
.PHONY: fuzz
fuzz: ## Fuzz every parser; FUZZ_SECONDS=600 (needs nightly and cargo-fuzz).
	$(TESTS) --test fuzz_smoke -- --ignored --exact seeds_for_the_long_form
	@for target in $(FUZZ_TARGETS); do \
	    $(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=3000 || exit 1; \
	done

# What is installed beside the programs: files that are found by name, and documents.
SHARED := $(wildcard machines/*.toml machines/memory/*.toml ladders/*.toml)
DOCUMENTS := README.md CHANGELOG.md CONTRIBUTING.md LICENSE-APACHE LICENSE-MIT \
    $(shell find docs bench -name '*.md' -o -name '*.svg')
SHARE = $(DESTDIR)$(PREFIX)/share

.PHONY: install
install: ## Install what was built to PREFIX (default /usr/local), with machines, ladders, documents.
	@test -x $(TERRACE) || { echo "run \`make build\` first" >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/terrace \
	    $(SHARE)/man/man1 \
	    $(SHARE)/bash-completion/completions \
	    $(SHARE)/zsh/site-functions \
	    $(SHARE)/fish/vendor_completions.d
	install -m 755 $(TERRACE) $(DESTDIR)$(PREFIX)/bin/terrace
	install -m 644 $(TARGET)/release/libterrace_preload.so \
	    $(TARGET)/release/libterrace_recorder.so $(DESTDIR)$(PREFIX)/lib/terrace/
	$(TERRACE) man $(SHARE)/man/man1
	$(TERRACE) completions bash >$(SHARE)/bash-completion/completions/terrace
	$(TERRACE) completions zsh >$(SHARE)/zsh/site-functions/_terrace
	$(TERRACE) completions fish >$(SHARE)/fish/vendor_completions.d/terrace.fish
	install -D -m 644 packaging/provision.toml $(SHARE)/terrace/provision.toml
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' packaging/terrace-provision.service \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/system/terrace-provision.service
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' packaging/terrace-kloc.service \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/system/terrace-kloc.service
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' packaging/terrace-govern@.service \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/system/terrace-govern@.service
	@for file in $(SHARED); do install -D -m 644 $$file $(SHARE)/terrace/$$file || exit 1; done
	@for file in $(DOCUMENTS); do install -D -m 644 $$file $(SHARE)/doc/terrace/$$file || exit 1; done
	@echo "installed: $(words $(SHARED)) machine, memory and ladder files in $(SHARE)/terrace," \
	    "$(words $(DOCUMENTS)) documents in $(SHARE)/doc/terrace"

.PHONY: uninstall
uninstall: ## Remove what `make install` put there.
	rm -f $(DESTDIR)$(PREFIX)/bin/terrace $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_preload.so \
	    $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_recorder.so \
	    $(DESTDIR)$(PREFIX)/lib/systemd/system/terrace-provision.service \
	    $(DESTDIR)$(PREFIX)/lib/systemd/system/terrace-kloc.service \
	    $(DESTDIR)$(PREFIX)/lib/systemd/system/terrace-govern@.service \
	    $(SHARE)/terrace/provision.toml \
	    $(SHARE)/man/man1/terrace.1 $(SHARE)/man/man1/terrace-*.1 \
	    $(SHARE)/bash-completion/completions/terrace \
	    $(SHARE)/zsh/site-functions/_terrace \
	    $(SHARE)/fish/vendor_completions.d/terrace.fish
	@rm -f $(addprefix $(SHARE)/terrace/,$(SHARED)) $(addprefix $(SHARE)/doc/terrace/,$(DOCUMENTS))
	@# Directories go if nothing of somebody else's is in them.
	@for tree in $(SHARE)/terrace $(SHARE)/doc/terrace $(DESTDIR)$(PREFIX)/lib/terrace; do \
	    if [ -d "$$tree" ]; then find "$$tree" -depth -type d -empty -delete; fi; \
	done

.PHONY: clean
clean: ## Remove what was built.
	$(CARGO) clean
