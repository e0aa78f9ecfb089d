# shellcheck shell=sh
# What the tests share. Sourced by each of them.
#
# Emulation makes observing some twenty times as dear as it is, so tests that
# are not about the cap on it allow 40 % where 3 % is the default. And how fast
# the guest is depends on what else the host does, so tests wait for what they
# expect, up to a limit, instead of for a time.

# load PURPOSE: the kernel's modules for it, unless another test has loaded them.
load() {
    for module in /modules/"$1"/*.ko; do
        name=${module##*/*-}
        [ -d "/sys/module/${name%.ko}" ] || insmod "$module"
    done
}

# until_ready PID: waits until hotset has its memory; fails if that process, it or who
# started it, ends.
until_ready() {
    until grep -q ready /tmp/hotset.out; do
        kill -0 "$1"
        sleep 0.1
    done
}

# Starts hotset with these arguments; $program is its number.
start_hotset() {
    # Emptied before: what runs in the background may do it after the first look, and
    # what an earlier one said is still there then.
    : >/tmp/hotset.out
    hotset "$@" >/tmp/hotset.out &
    program=$!
    until_ready "$program"
}

# Asks hotset where its pages are.
look() {
    said=$(grep -c '^rounds=' /tmp/hotset.out || true)
    kill -USR1 "$program"
    until [ "$(grep -c '^rounds=' /tmp/hotset.out || true)" -gt "$said" ]; do
        if ! kill -0 "$program"; then
            echo "hotset is no more"
            return 1
        fi
        sleep 0.1
    done
}

# Stops it, and shows the last of what it said.
stop_hotset() {
    kill -TERM "$program"
    wait "$program" || {
        tail -n 2 /tmp/hotset.out
        echo "hotset failed"
        return 1
    }
    tail -n 2 /tmp/hotset.out
    grep -q 'content intact' /tmp/hotset.out
}

# placed PART KEY: how many pages of a part of the program are where.
placed() {
    grep '^rounds=' /tmp/hotset.out | tail -n 1 |
        sed -n "s/.* $1 \([^ ]* [^ ]* [^ ]* [^ ]*\).*/\1/p" |
        tr ' ' '\n' | sed -n "s/^$2=//p"
}

# in_all KEY: the same of the whole program.
in_all() {
    echo "$(($(placed hot "$1") + $(placed cold-fast "$1") + $(placed cold-before "$1") + $(placed cold-after "$1")))"
}

# until_placed SECONDS CONDITION: looks every second until a condition holds,
# or the time is over.
until_placed() {
    patience=$1
    look
    until eval "$2"; do
        [ "$patience" -gt 0 ] || return 0
        patience=$((patience - 1))
        sleep 1
        look
    done
}

# attach_until SECONDS CONDITION ARGUMENTS...: attaches to hotset until a
# condition holds, or the time is over. Leaves the report in /tmp/report.json.
attach_until() {
    patience=$1
    condition=$2
    shift 2
    terrace attach --sampling-cap 40% "$@" --json --report /tmp/report.json &
    attached=$!
    until_placed "$patience" "$condition"
    kill -INT "$attached"
    wait "$attached"
}

# reported FILE FIELD: the first number of this name in a JSON report.
reported() {
    sed -n "s/^ *\"$2\": \([0-9.]*\),\{0,1\}$/\1/p" "$1" | head -n 1
}

# expect VALUE OPERATOR VALUE WHAT
expect() {
    # shellcheck disable=SC1009,SC1072,SC1073
    if test "$1" "$2" "$3"; then
        echo "ok: $4 ($1 $2 $3)"
    else
        echo "NOT: $4 ($1 $2 $3)"
        return 1
    fi
}
