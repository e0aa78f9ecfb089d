#!/usr/bin/env bash
# The host's part of provision_virtual: the daemon, for QEMU's socket.
#
#   provision_virtual.sh TERRACE SOCKET CONSOLE
set -euo pipefail
terrace=$1
socket=$2
console=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
until grep -q 'GUEST wants a daemon' "$console"; do sleep 0.5; done
cat >"$work/vm.toml" <<CONFIG
provision = 1
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "5s"
[offline]
headroom = "32MiB"
[vm]
qmp = "$socket"
device = "more0"
balloon = "balloon0"
CONFIG
"$terrace" check "$work/vm.toml"
"$terrace" provision run --config "$work/vm.toml" --state "$work/state" &
daemon=$!
# It ends with the guest, or with it.
until grep -q 'GUEST .*provision_virtual: ' "$console" || ! kill -0 "$daemon" 2>/dev/null; do
    sleep 0.5
done
kill -TERM "$daemon" 2>/dev/null || true
wait "$daemon" || true
"$terrace" provision why --state "$work/state"
