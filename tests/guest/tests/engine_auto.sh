# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# `run --engine auto`: the kernel's engine where zram is the machine's swap, and the pager without. On
# a machine of its own, because all other runs beside it would have the engine that this one has.
. /tests/lib.sh
load zram
echo 0 >/sys/class/zram-control/hot_remove || true
echo +memory >/sys/fs/cgroup/cgroup.subtree_control

# engine_is NAME: what a run that names none has, and what the doctor says.
engine_is() {
    terrace run --json --fast 24MiB --report /tmp/auto.json -- /hazards/patterns >/tmp/auto.out 2>/tmp/auto.err
    cat /tmp/auto.err
    case $1 in
    kernel) grep -q '"kind": "terrace.kernel"' /tmp/auto.json ;;
    pager) grep -q '"kind": "terrace.run"' /tmp/auto.json ;;
    esac
    terrace doctor --json >/tmp/doctor.json
    sed -n '/"auto"/,/}/p' /tmp/doctor.json | tee /tmp/auto.doctor
    grep -q "\"engine\": \"$1\"" /tmp/auto.doctor
}

# Nothing to swap to: the pager, as ever, without a word.
engine_is pager
expect "$(wc -c </tmp/auto.err)" -eq 0 "nothing is said"
grep -q 'no swap on compressed memory is on' /tmp/auto.doctor

# A device that a run has made for itself is not the machine's.
terrace run --quiet --engine kernel --fast 24MiB -- hog 48 600 >/tmp/beside.out &
beside=$!
patience=600
until grep -q filled /tmp/beside.out; do
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { echo "it does not fill its memory"; exit 1; }
    sleep 0.1
done
grep -q '^/dev/zram' /proc/swaps
engine_is pager
expect "$(wc -c </tmp/auto.err)" -eq 0 "nothing is said"
grep -q 'what another run has made' /tmp/auto.doctor
kill -TERM "$beside"
wait "$beside" || true
patience=300
while grep -q '^/dev/zram' /proc/swaps; do
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { echo "its device stays"; exit 1; }
    sleep 0.2
done

# The machine's own, as large as memory: it is used as it is, and stays.
device=$(cat /sys/class/zram-control/hot_add)
echo "$(mem_total)K" >"/sys/block/zram$device/disksize"
mkswap "/dev/zram$device"
swapon "/dev/zram$device"
engine_is kernel
grep -q "engine kernel: zram$device is on" /tmp/auto.err
grep -q "zram$device, which was there" /tmp/auto.json
grep -q "^/dev/zram$device " /proc/swaps
set -- /sys/block/zram*
expect "$#" -eq 1 "no device is added"
# No group can be made, which nobody knows before: it is the pager after all, which is said once.
echo 0 >/sys/fs/cgroup/cgroup.max.descendants
terrace run --json --fast 24MiB --report /tmp/back.json -- /hazards/patterns >/tmp/back.out 2>/tmp/back.err
cat /tmp/back.err
grep -q '"kind": "terrace.run"' /tmp/back.json
grep -q '"engine": "pager: the kernel.s could not be set up: /sys/fs/cgroup/terrace-' /tmp/back.json
grep -q 'engine pager: the kernel.s could not be set up: /sys/fs/cgroup/terrace-' /tmp/back.err
expect "$(grep -c -e '--engine' /tmp/back.err)" -eq 1 "one engine is told"
# Asked for, it is that engine or none.
if terrace run --engine kernel --fast 24MiB -- /hazards/patterns >/tmp/none.out 2>/tmp/none.err; then
    echo "it runs without a group"
    exit 1
fi
cat /tmp/none.err
expect "$(wc -c </tmp/none.out)" -eq 0 "the program has not begun"
for record in /run/terrace.kernel/run-*; do
    [ ! -e "$record" ]
done
grep -q "^/dev/zram$device " /proc/swaps
echo max >/sys/fs/cgroup/cgroup.max.descendants
# What only the pager has is the pager's, which is said.
terrace run --json --fast 24MiB --huge-pages never --report /tmp/own.json -- /hazards/patterns 2>/tmp/own.err
cat /tmp/own.err
grep -q '"kind": "terrace.run"' /tmp/own.json
grep -q 'engine pager: .* but --huge-pages is the pager' /tmp/own.err

# Off again, it is the pager again.
swapoff "/dev/zram$device"
echo 1 >"/sys/block/zram$device/reset"
echo "$device" >/sys/class/zram-control/hot_remove
engine_is pager
