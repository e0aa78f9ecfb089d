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

# Starts the daemon of `terrace provision` with this configuration; $daemon is its number.
# What it says is in /tmp/daemon.
start_daemon() {
    rm -f /tmp/state/status.json
    terrace provision run --config "$1" --state /tmp/state >/tmp/daemon 2>&1 &
    daemon=$!
    # Its first look is behind it then.
    until [ -e /tmp/state/status.json ]; do
        kill -0 "$daemon" || { cat /tmp/daemon; return 1; }
        sleep 0.2
    done
}

# Ends it as an operator does; it must leave with success.
stop_daemon() {
    kill -TERM "$daemon"
    wait "$daemon" || { cat /tmp/daemon; echo "the daemon failed"; return 1; }
}

# until_true SECONDS COMMAND...: waits until a command succeeds; fails when the time is over.
until_true() {
    patience=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        patience=$((patience - 1))
        [ "$patience" -gt 0 ] || { echo "not within its time: $*"; cat /tmp/daemon; return 1; }
        sleep 0.2
    done
}

# Memory of the whole machine in KiB.
mem_total() { sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo; }

# blocks NODE STATE: how many memory blocks of a node are in a state.
blocks() {
    count=0
    for block in /sys/devices/system/node/node"$1"/memory[0-9]*; do
        if [ "$(cat "$block/state")" = "$2" ]; then count=$((count + 1)); fi
    done
    echo "$count"
}

# all_offline NODE
all_offline() { [ "$(blocks "$1" online)" -eq 0 ]; }

# set_blocks NODE WORD: as an operator does by hand.
set_blocks() {
    for block in /sys/devices/system/node/node"$1"/memory[0-9]*; do
        echo "$2" >"$block/state"
    done
}

# What there is to be known where a program did not survive, or its daemon did not do as expected.
failed_hog() {
    cat /tmp/hog
    terrace provision why --state /tmp/state
    dmesg | tail -n 40
    return 1
}
