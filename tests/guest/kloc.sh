# shellcheck shell=sh disable=SC2034,SC2154
# What tests of the daemon of `terrace kloc` share. Sourced by each of them.

# asked QUESTION...: the daemon's answer.
asked() { terrace kloc "$@" --json --state /tmp/kloc; }

# until_asked SECONDS PATTERN QUESTION...: asks until the answer has it.
until_asked() {
    patience=$1
    pattern=$2
    shift 2
    until asked "$@" >/tmp/answer 2>&1 && grep -q "$pattern" /tmp/answer; do
        patience=$((patience - 1))
        [ "$patience" -gt 0 ] || { cat /tmp/answer /tmp/kloc.out; return 1; }
        sleep 1
    done
}

# begin OPTION...: the daemon.
begin() {
    terrace kloc run --json --state /tmp/kloc --mode enforce "$@" >/tmp/kloc.out 2>&1 &
    daemon=$!
    until_asked 60 terrace.kloc.top top --times 1
}

finish() {
    kill -TERM "$daemon"
    wait "$daemon"
}
