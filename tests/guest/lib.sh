# shellcheck shell=sh
# What the tests share. Sourced by each of them.
#
# Emulation makes observing some twenty times as dear as it is, so tests that
# are not about the cap on it allow 40 % where 3 % is the default.

# Starts hotset with these arguments; $program is its number.
start_hotset() {
    hotset "$@" >/tmp/hotset.out &
    program=$!
    until grep -q ready /tmp/hotset.out; do sleep 0.1; done
}

# Stops it; its last words are in /tmp/hotset.out.
stop_hotset() {
    kill -TERM "$program"
    wait "$program" || {
        cat /tmp/hotset.out
        echo "hotset failed"
        return 1
    }
    cat /tmp/hotset.out
    grep -q 'content intact' /tmp/hotset.out
}

# placed PART KEY: how many pages of a part of the program are where.
placed() {
    sed -n "s/.* $1 \([^ ]* [^ ]* [^ ]* [^ ]*\).*/\1/p" /tmp/hotset.out |
        tr ' ' '\n' | sed -n "s/^$2=//p"
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
