# Terrace: `make demo` shows it, `make test` tests it, `make` lists the rest.

SHELL := /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Rustup's place, for shells that have not read its environment.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Only what matches runs: make hazards ONLY=fork
ONLY ?=
# How often each hazard strikes in `make test` (with less, not every policy has its turn); and in
# `make test-long`. A quarter to a half of the times under the live policies by turns, the others
# under the default.
HAZARD_REPEAT ?= 24
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
MIRI_MODULES ?= histogram:: kept:: page_state:: queue:: spin:: store:: \
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
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory deny
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory hazards
	@$(MAKE) --no-print-directory sweep SWEEP_SECONDS=$(SWEEP_SECONDS_SHORT)
	@# Two at once are done sooner; that their times are not to be compared then is no matter here.
	@$(MAKE) --no-print-directory programs PROGRAM_JOBS=2
	@$(MAKE) --no-print-directory soak SOAK_SECONDS=$(SOAK_SECONDS_SHORT)
	@$(MAKE) --no-print-directory foreign FOREIGN=short
	@$(MAKE) --no-print-directory guest-short
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
	@$(MAKE) --no-print-directory properties
	FUZZ_ITERATIONS=1000000 $(TESTS) --release --test fuzz_smoke
	@$(MAKE) --no-print-directory hazards HAZARD_REPEAT=$(HAZARD_REPEAT_LONG)
	@$(MAKE) --no-print-directory sweep
	HAZARD_RUN_ARGS="--policy first-touch" \
	    $(MAKE) --no-print-directory hazards HAZARD_REPEAT=$(HAZARD_REPEAT_LONG)
	@$(MAKE) --no-print-directory programs

.PHONY: lint
lint: ## Formatting, clippy, links in documentation, and shellcheck.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@# Those that are not run by default are not among all targets, either.
	@$(CARGO) clippy -q --locked --workspace --test hazards --test programs --test foreign \
	    --test soak -- -D warnings
	@# The table of a crate's files names modules that are not public.
	@RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc -q --locked \
	    --workspace --no-deps --document-private-items
	@if command -v shellcheck >/dev/null; then \
	    echo "shellcheck scripts"; shellcheck scripts/*.sh tests/guest/*.sh tests/guest/tests/*.sh .ci/run \
	        bench/nodes/run.sh bench/nodes/init bench/families/*.sh; \
	else \
	    echo "shellcheck is not installed: scripts NOT checked"; [ -z "$(MUST_RUN)" ]; \
	fi

.PHONY: deny
deny: ## Licences and sources of every dependency.
	scripts/deny.sh

.PHONY: unit
unit: build ## Unit, property and command-line tests of every crate.
	TERRACE_BIN=$(abspath $(TERRACE)) $(WITH_UFFD) $(TESTS) --no-fail-fast

.PHONY: miri
miri: ## The pager's data structures under Miri: undefined behaviour, weak memory (needs nightly).
	MIRIFLAGS="$(MIRI_PAGER)" PROPTEST_CASES=$(MIRI_CASES) \
	    $(CARGO) +nightly miri test --locked -p terrace-live --lib -- $(MIRI_MODULES)
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=$(MIRI_CASES) \
	    $(CARGO) +nightly miri test --locked -p terrace-core --lib

.PHONY: hazards
hazards: build ## The C hazard suite; ONLY=name and HAZARD_REPEAT=n choose.
	HAZARD_REPEAT=$(HAZARD_REPEAT) TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(WITH_UFFD) $(TESTS) --test hazards -- $(ONLY)

.PHONY: sweep
sweep: build ## Hazards in which something of ours breaks at random, for SWEEP_SECONDS (1800).
	HAZARD_SWEEP=$(SWEEP_SECONDS) TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(WITH_UFFD) $(TESTS) --test hazards

.PHONY: programs
programs: build ## Real programs in a quarter of their memory; ONLY=name and PROGRAM_JOBS=n choose.
	TERRACE_BIN=$(abspath $(TERRACE)) $(WITH_UFFD) $(TESTS) --test programs -- $(ONLY)

.PHONY: soak
soak: build ## Real programs under budgets that change at random, for SOAK_SECONDS (1800).
	SOAK_SECONDS=$(SOAK_SECONDS) TERRACE_BIN=$(abspath $(TERRACE)) $(WITH_UFFD) $(TESTS) --test soak

.PHONY: foreign
foreign: build ## CPython's, redis's and stress-ng's tests, a database, a browser, a JVM, cargo; FOREIGN=short, ONLY=name choose.
	@FOREIGN=$(FOREIGN) scripts/setup.sh foreign || echo "setup.sh foreign failed" >&2
	@scripts/redis-tests.sh $(abspath $(TARGET))/redis-tests || \
	    echo "redis's test suite could not be fetched: NOT run" >&2
	FOREIGN=$(FOREIGN) TERRACE_BIN=$(abspath $(TERRACE)) \
	    $(WITH_UFFD) $(TESTS) --test foreign -- $(ONLY)

.PHONY: guest
guest: build ## Attach and NUMA tiers in an emulated guest with two nodes; ONLY="name …" chooses.
	@scripts/setup.sh guest
	tests/guest/guest.sh $(TERRACE) $(ONLY)

# The part of it that `make test` runs: what tests/guest/tests.list marks as short. Where no
# guest can be had that is said loudly, and is a failure only where everything must be tested;
# a guest whose tests fail is one anywhere.
.PHONY: guest-short
guest-short: build
	@scripts/setup.sh guest || echo "setup.sh guest failed" >&2
	@$(WATCHED) tests/guest/guest.sh $(TERRACE) --short; status=$$?; \
	if [ $$status -eq 77 ] && [ -z "$(MUST_RUN)" ]; then \
	    echo "SKIPPED: the tests in a guest with two NUMA nodes (the reason is above)"; \
	else exit $$status; fi

.PHONY: bench
bench: bench-live bench-programs bench-sim ## Measure everything beside its peers; writes nothing, prints tables.

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

.PHONY: bench-bound
bench-bound: build ## How fast a pager in user space could be at best, beside kernel swap on zram (root; 5 minutes).
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh bound $(TARGET)/release

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
bench-programs: build ## Real programs in half of their memory, beside zram (needs root; 5 minutes).
	@scripts/setup.sh bench
	$(CARGO) build --locked --release -p terrace-bench
	bench/live/run.sh programs $(TARGET)/release --rounds $(BENCH_ROUNDS)

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

.PHONY: crash-long
crash-long: ## More than 10 000 crash points of random programs.
	CRASH_PROGRAMS=120 CRASH_POINTS=10000 \
	    $(CARGO) test --locked --release -p terrace-persist --test crash -- --nocapture

.PHONY: validate
validate: build ## Ours beside references, from runs made now: seven parts, exit code 1 if a row fails.
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
	$(CARGO) build --locked --release -p terrace-sim --example full_speed
	$(CARGO) build --locked --release -p terrace-dram --example dram_speed
	bench/sim/full_speed.sh $(TARGET)/release

# Seconds a target, and which.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
.PHONY: fuzz
fuzz: ## Fuzz every parser; FUZZ_SECONDS=600 (needs nightly and cargo-fuzz).
	$(TESTS) --test fuzz_smoke -- --ignored --exact seeds_for_the_long_form
	@for target in $(FUZZ_TARGETS); do \
	    $(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=3000 || exit 1; \
	done

.PHONY: install
install: ## Install what was built to PREFIX (default /usr/local).
	@test -x $(TERRACE) || { echo "run \`make build\` first" >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/terrace \
	    $(DESTDIR)$(PREFIX)/share/man/man1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(TERRACE) $(DESTDIR)$(PREFIX)/bin/terrace
	install -m 644 $(TARGET)/release/libterrace_preload.so \
	    $(TARGET)/release/libterrace_recorder.so $(DESTDIR)$(PREFIX)/lib/terrace/
	$(TERRACE) man $(DESTDIR)$(PREFIX)/share/man/man1
	$(TERRACE) completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/terrace
	$(TERRACE) completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_terrace
	$(TERRACE) completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/terrace.fish

.PHONY: uninstall
uninstall: ## Remove what `make install` put there.
	rm -f $(DESTDIR)$(PREFIX)/bin/terrace $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_preload.so \
	    $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_recorder.so \
	    $(DESTDIR)$(PREFIX)/share/man/man1/terrace.1 $(DESTDIR)$(PREFIX)/share/man/man1/terrace-*.1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/terrace \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_terrace \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/terrace.fish
	rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/lib/terrace || true

.PHONY: clean
clean: ## Remove what was built.
	$(CARGO) clean
