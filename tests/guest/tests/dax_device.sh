# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# A DAX device as a tier. First it is a device for programs, and refused with the command that
# makes it memory; that command is run as it was told. Then a program's pages lie on it.
. /tests/lib.sh
load pmem
load dax
# Whoever brings memory online is to be us: so the command for that is asked for, too.
echo offline >/sys/devices/system/memory/auto_online_blocks
# What `ndctl create-namespace --mode=devdax` does, for the NVDIMM.
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
expect "$(cat "/sys/bus/dax/devices/$device/target_node")" -eq 2 "the device has a node of its own"

# refused STATUS WHAT ARGUMENTS...: nothing is started, and one line says why.
refused() {
    expected=$1
    what=$2
    shift 2
    status=0
    terrace run --fast 8MiB "$@" -- echo started >/tmp/refusal 2>&1 || status=$?
    cat /tmp/refusal
    expect "$status" -eq "$expected" "$what"
    expect "$(wc -l </tmp/refusal)" -eq 1 "one line"
    if grep started /tmp/refusal; then return 1; fi
}
# The command in the last refusal: what stands between grave accents after the semicolon.
proposed() { sed -n 's/^terrace: .*; `\([^`]*\)`.*/\1/p' /tmp/refusal; }

refused 2 "a device that is not there" --slow dax:dax77.0
refused 2 "a file is no device" --slow dax:/tmp/file
refused 3 "a device for programs" --slow "dax:$device"
grep -q "\`dax:$device\`: its driver is device_dax" /tmp/refusal
terrace doctor | grep "DAX device  *$device: 256 MiB, driver device_dax, node 2; no tier: "
eval "$(proposed)"
refused 3 "memory that is offline" --slow "dax:/dev/$device"
grep -q "\`dax:$device\`: its driver is kmem, but its memory is offline" /tmp/refusal
eval "$(proposed)"
terrace doctor | grep "DAX device  *$device: 256 MiB, driver kmem, node 2; tier \`dax:$device\`, 128 MiB online\$"
refused 2 "one memory under two names" --slow numa:2 --slow "dax:$device"

cat >/tmp/ladder.toml <<LADDER
ladder = 1

[[tier]]
memory = "numa:0"
capacity = "8MiB"

[[tier]]
memory = "dax:$device"
LADDER
terrace check /tmp/ladder.toml | grep "numa:0, dax:$device"
: >/tmp/hotset.out
SLOW_NODE=2 terrace run --tiers /tmp/ladder.toml --sampling-cap 40% --json \
    --report /tmp/report.json -- hotset write 32 3 16 >/tmp/hotset.out &
terrace=$!
until_ready "$terrace"
program=$(pidof hotset)
# 3 MiB are 768 pages, 8 MiB 2048. Of what is neither on node 0 nor on node 1, all is on node 2.
until_placed 120 '[ "$(placed hot node0)" -ge 740 ] && [ "$(in_all node0)" -le 2048 ]'
terrace top hotset >/tmp/top
# Ends the program by way of terrace, which hands the signal on.
program=$terrace
stop_hotset
cat /tmp/report.json
expect "$(placed hot node0)" -ge 740 "hot pages came from the device"
expect "$(in_all node0)" -le 2100 "the fast node's capacity is kept"
expect "$(placed cold-fast other)" -ge 1500 "what was too much lies on the device"
expect "$(in_all node1)" -eq 0 "and nothing elsewhere"
expect "$(reported /tmp/report.json promotions)" -ge 740 "promotions are counted"
expect "$(grep -c "\"memory\": \"dax:$device\"" /tmp/report.json)" -eq 1 "the report has its name"
expect "$(reported /tmp/report.json node)" -eq 2 "and its node"
cat /tmp/top
expect "$(grep -c "dax:$device (numa:2)" /tmp/top)" -ge 1 "so has the screen"
status=0
terrace run --fast 8MiB --slow "dax:$device" --quiet -- sh -c 'exit 7' || status=$?
expect "$status" -eq 7 "the same without a file"
