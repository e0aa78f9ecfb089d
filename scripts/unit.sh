#!/usr/bin/env bash
# Runs unit, property and command-line tests, which have been built, in two lanes at once: those
# that only compute fill what those leave idle that wait for programs, servers and the kernel.
#
#   scripts/unit.sh COMMAND ARGUMENTS...           `cargo test` with its options
#   scripts/unit.sh --lane LANE PROGRAM ARGUMENTS...   as Cargo's runner: only what is in this lane
#
# In each lane one program of tests follows the other, as Cargo has it. Whatever looks at the machine
# (its swap, groups, devices, hooks), or for what a run left behind on it, is in the lane that waits,
# and so never beside another of its kind.
set -uo pipefail

# lane_of PROGRAM: the lane of a program of tests. Cargo starts it in the directory of its crate.
lane_of() {
    local root program=${1##*/}
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
    local crate
    crate=$(pwd -P)
    # Cargo adds a dash and a number to its name.
    case ${crate#"$root"/}/${program%-*} in
    # A simulator at work, a command at a time: nothing of the machine's.
    crates/cli/crash | crates/cli/sim | crates/cli/sweep | crates/cli/plan) echo computes ;;
    crates/cli/reproduce_cbmm | crates/cli/reproduce_klocs) echo computes ;;
    crates/core/* | crates/dram/* | crates/economics/* | crates/kloc/*) echo computes ;;
    crates/persist/* | crates/policy/* | crates/profile/* | crates/provision/*) echo computes ;;
    crates/report/* | crates/sim/* | tests/models/* | tests/runner/*) echo computes ;;
    *) echo waits ;;
    esac
}

# computes_in PROGRAM: a test of a program in the lane that waits which only computes, for as long as all
# its others wait. That one is in the other lane.
computes_in() {
    case $(pwd -P)/${1##*/} in
    */crates/cli/options-*) echo options_of_simulations_do_something_or_are_refused ;;
    esac
}

if [ "${1-}" = --lane ]; then
    lane=$2
    shift 2
    test=$(computes_in "$1")
    if [ "$(lane_of "$1")" = "$lane" ]; then
        if [ -n "$test" ]; then exec "$@" --skip "$test"; fi
        exec "$@"
    fi
    if [ -n "$test" ]; then exec "$@" "$test"; fi
    echo "(in the other lane)"
    exit 0
fi

script=$(cd "$(dirname "$0")" && pwd)/unit.sh
runner() { echo "target.'cfg(all())'.runner = ['$script', '--lane', '$1']"; }
said=$(mktemp)
computing=
ended() {
    if [ -n "$computing" ]; then kill -- "-$computing" 2>/dev/null; fi
    rm -f "$said"
}
trap ended EXIT
# A group of processes of its own: a signal from the keyboard is ignored in what merely runs in the
# background, which tests of signals would inherit; and it is ended with all that it has started.
set -m
# What waits is to find the processors free when it goes on.
nice -n 5 "$@" --config "$(runner computes)" </dev/null >"$said" 2>&1 &
computing=$!
set +m

status=0
"$@" --config "$(runner waits)" || status=$?
# Whole lines of one lane behind those of the other; and who watches for silence hears something.
tail -n +1 -f --pid="$computing" "$said"
wait "$computing" || status=$?
computing=
[ "$status" -eq 0 ]
