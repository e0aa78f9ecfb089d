# shellcheck shell=sh
# What tests of volumes share: a volume as a block device. Sourced by each of them.

# serve ARGUMENTS...: starts a server; its number is $server, its block device $device.
serve() {
    : >/tmp/served
    terrace volume serve --ublk --json "$@" >/tmp/served 2>/tmp/said &
    server=$!
    until grep -q ublkb /tmp/served; do
        kill -0 "$server" || {
            cat /tmp/said
            return 1
        }
        sleep 0.1
    done
    device=$(sed -n 's/.*"device": *"\([^"]*\)".*/\1/p' /tmp/served)
}

# finish STATUS: ends it, with this exit code.
finish() {
    kill -TERM "$server"
    ended=0
    wait "$server" || ended=$?
    cat /tmp/said
    expect "$ended" -eq "$1" "the server's exit code"
}

# How many sectors of $image are written.
terrace_written() {
    # shellcheck disable=SC2154
    terrace volume info --json "$image" | sed -n 's/^ *"written": \([0-9]*\),\{0,1\}$/\1/p'
}

# Makes the NVDIMM a device for programs, as `ndctl create-namespace --mode=devdax` does; it is
# $device afterwards.
make_dax_device() {
    for bus in /sys/bus/nd/devices/ndbus*; do
        if [ "$(cat "$bus/provider")" = ACPI.NFIT ]; then
            region=$(echo "$bus"/region[0-9]*)
        fi
    done
    namespace=$(basename "$region"/namespace[0-9]*)
    device=$(cat "$region/dax_seed")
    echo "$namespace" >/sys/bus/nd/drivers/nd_pmem/unbind
    cat /proc/sys/kernel/random/uuid >"$region/$device/uuid"
    echo ram >"$region/$device/mode"
    echo 2097152 >"$region/$device/align"
    echo "$namespace" >"$region/$device/namespace"
    echo "$device" >/sys/bus/nd/drivers/dax_pmem/bind
}
