#!/usr/bin/env bash
# Makes targets one after the other, and says at the end how long each took, also where one failed.
#
#   scripts/phases.sh "TARGET VARIABLE=VALUE" ...
set -uo pipefail

table=()
began=$SECONDS
summary() { printf '%6d s  %s\n' "${table[@]}" $((SECONDS - began)) "all"; }
for phase in "$@"; do
    start=$SECONDS
    # Words of the target and its variables, on purpose.
    # shellcheck disable=SC2086
    "${MAKE:-make}" --no-print-directory $phase
    code=$?
    table+=($((SECONDS - start)) "$phase")
    if [ $code -ne 0 ]; then
        summary
        exit $code
    fi
done
summary
