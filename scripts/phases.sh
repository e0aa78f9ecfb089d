#!/usr/bin/env bash
# Makes targets one after the other, and says at the end how long each took, also where one failed.
#
#   scripts/phases.sh "TARGET VARIABLE=VALUE" "TARGET & TARGET" ...
#
# Those with a `&` in between are made at once, for compilers leave a processor idle, and downloads
# both. What all but the first of them say is shown behind what that says.
#
# With PHASE_TRIES=2 one that failed is made once more, and it is told if it passed then: real
# programs on a small machine that does other things fail for reasons of the machine's now and
# then. What fails twice is a failure, and whoever works on the code does not set this.
set -uo pipefail

table=()
unsure=()
began=$SECONDS
summary() {
    printf '%6d s  %s\n' "${table[@]}" $((SECONDS - began)) "all"
    for phase in ${unsure[@]+"${unsure[@]}"}; do
        echo "UNSURE: \`$phase' failed, and passed when it was made again. Look for the failure above."
    done
}
# What is made beside the first target of a phase: processes, and files with what they say. An interrupt
# from the keyboard ends the first one and this script, but is ignored by what runs in the background.
others=()
said=()
end_others() {
    if [ ${#others[@]} -gt 0 ]; then kill "${others[@]}" 2>/dev/null; fi
    if [ ${#said[@]} -gt 0 ]; then rm -f "${said[@]}"; fi
}
trap end_others EXIT
# make_one "TARGET VARIABLE=VALUE": in a process of its own, which becomes `make`. That ends what it has
# begun if it is ended.
make_one() {
    # Words of the target and its variables, on purpose.
    # shellcheck disable=SC2086
    exec "${MAKE:-make}" --no-print-directory $1
}
make_phase() {
    local parts part i code=0
    others=()
    said=()
    mapfile -t parts <<<"${1// & /$'\n'}"
    for part in "${parts[@]:1}"; do
        said+=("$(mktemp)")
        make_one "$part" >"${said[-1]}" 2>&1 </dev/null &
        others+=($!)
    done
    (make_one "${parts[0]}") || code=$?
    for i in "${!others[@]}"; do
        wait "${others[i]}" || code=$?
        unset "others[i]"
        cat "${said[i]}"
        rm -f "${said[i]}"
    done
    said=()
    return $code
}
for phase in "$@"; do
    start=$SECONDS
    make_phase "$phase"
    code=$?
    for ((try = 1; code != 0 && try < ${PHASE_TRIES:-1}; try++)); do
        echo "phases.sh: \`$phase' failed (exit $code); it is made again"
        make_phase "$phase"
        code=$?
        [ $code -eq 0 ] && unsure+=("$phase")
    done
    table+=($((SECONDS - start)) "$phase")
    if [ $code -ne 0 ]; then
        summary
        exit $code
    fi
done
summary
