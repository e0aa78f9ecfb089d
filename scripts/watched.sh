#!/usr/bin/env bash
# Runs a command, and ends it if it says nothing for a while: then what every
# process that it started waits for is shown, since a log that ends with
# `Terminated` tells nobody which program hung, or where.
#
#   scripts/watched.sh SECONDS COMMAND ARGUMENTS...
#
# At a terminal it only runs the command: who sits there can look.
# Exit code: the command's, or 124 if it was ended.
set -uo pipefail

limit=$1
shift
if [ -t 1 ]; then exec "$@"; fi

status_file=$(mktemp)
trap 'rm -f "$status_file"' EXIT

# Whatever the command has started, however it was detached: the variable is inherited.
export WATCHED=$$
started() {
    local process
    for process in /proc/[0-9]*; do
        [ "$process" = "/proc/$$" ] && continue
        { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qx "WATCHED=$$" &&
            echo "${process#/proc/}"
    done
}

# Every thread of a process: its name, state, and where it is in the kernel.
threads() {
    local task
    for task in /proc/"$1"/task/*; do
        printf '    %s %s %s %s\n' "${task##*/}" "$(cat "$task/comm" 2>/dev/null)" \
            "$(sed -n 's/^State:[[:space:]]*//p' "$task/status" 2>/dev/null)" \
            "$(cut -d' ' -f1-3 "$task/syscall" 2>/dev/null)"
        # Only root may read it.
        sed 's/^/        /' "$task/stack" 2>/dev/null | head -6
    done | head -120
}

tell() {
    echo "watched.sh: nothing was said for $limit s; what runs:"
    # Kernel threads, children of 2, are left out.
    ps -eo pid,ppid,stat,etimes,time,wchan:24,args --forest --cols 180 | awk '$2 != 2'
    local pid
    for pid in $(started); do
        echo "  $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c1-160)"
        threads "$pid"
    done
}

# In a session of its own, so that it can be ended with what it has started.
exec 3< <(
    setsid --wait "$@" 2>&1
    echo $? >"$status_file"
)
while true; do
    IFS= read -r -t "$limit" line <&3
    got=$?
    if [ $got -eq 0 ]; then
        printf '%s\n' "$line"
    elif [ $got -le 128 ]; then
        printf '%s' "$line"
        break
    else
        printf '%s\n' "$line"
        tell
        for pid in $(started); do kill -KILL "$pid" 2>/dev/null; done
        exit 124
    fi
done
# The pipe is closed once all that hold it are gone; the status is written last.
while [ ! -s "$status_file" ]; do sleep 0.05; done
exit "$(cat "$status_file")"
