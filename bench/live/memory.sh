# shellcheck shell=bash
# How memory is while a benchmark runs: the setting of transparent huge pages, and free memory in
# pieces. For tails.sh and tails_programs.sh. Makes a directory, `work`. All is as it was when the
# script ends, however it does.

work=$(mktemp -d)
setting=/sys/kernel/mm/transparent_hugepage/enabled
before=$(sed -n 's/.*\[\(.*\)\].*/\1/p' "$setting" 2>/dev/null || true)
# Who holds memory in pieces, and what runs, if there is any.
holder=
child=

give_back() {
    if [ -n "$holder" ]; then
        exec 9>&- || true
        wait "$holder" 2>/dev/null || true
        holder=
    fi
}

restore() {
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
        child=
    fi
    give_back
    if [ -w "$setting" ]; then echo "$before" >"$setting" || true; fi
}
trap 'restore; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

cc -O2 "$(dirname "${BASH_SOURCE[0]}")/fragment.c" -o "$work/fragment"
# shellcheck source=bench/live/host.sh
. "$(dirname "${BASH_SOURCE[0]}")/host.sh"

# Sets when the kernel uses huge pages; false where it cannot be set.
huge_pages() {
    [ -w "$setting" ] && echo "$1" 2>/dev/null >"$setting"
}

# Has so many MiB of free memory in pieces, or all but 64 MiB, until `give_back`.
fragment() {
    local free=${1:-$(awk '/MemFree/ {print int($2 / 1024) - 64}' /proc/meminfo)} said
    rm -f "$work/hold" "$work/ready"
    mkfifo "$work/hold" "$work/ready"
    "$work/fragment" "$free" <"$work/hold" >"$work/ready" &
    holder=$!
    exec 9>"$work/hold"
    read -r said <"$work/ready" || { echo "the fragmenter failed" >&2; exit 1; }
    [ "$said" = ready ]
}

# How many blocks of 2 MiB are free, larger ones counted by their parts.
free_blocks() {
    awk '{for (i = 14; i <= NF; i++) n += $i * 2 ^ (i - 14)} END {printf "%d\n", n}' /proc/buddyinfo
}

# Runs a command so that a signal to the script finds it at once, and without what holds memory open.
ours() {
    local status=0
    "$@" 9>&- &
    child=$!
    wait "$child" || status=$?
    child=
    return "$status"
}

machine() {
    echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
        "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)," \
        "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)," \
        "load $(cut -d' ' -f1 /proc/loadavg)"
}
