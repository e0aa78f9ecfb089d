# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# The kernel engine on a machine with version 2 of control groups, PSI, MGLRU and DAMON, which the
# machines that builds run on may lack: zram and a group are made and undone, the budget holds by
# `memory.reclaim` and `memory.high`, a budget changes, a group of somebody else's is kept within
# one, and a governed program has memory taken by what its stall times allow.
. /tests/lib.sh
load zram
# Devices are made by the engine; that which the module brought is taken away.
echo 0 >/sys/class/zram-control/hot_remove || true
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
# What this test is for.
[ -e /sys/fs/cgroup/memory.reclaim ] || [ -e /proc/pressure/memory ]
if [ -e /sys/kernel/mm/lru_gen/enabled ]; then
    echo y >/sys/kernel/mm/lru_gen/enabled
    echo "MGLRU: $(cat /sys/kernel/mm/lru_gen/enabled)"
else
    echo "no MGLRU in this kernel"
fi
grep -q . /proc/pressure/memory
terrace doctor --json >/tmp/doctor.json
sed -n '/"kernel_engine"/,/^  }/p' /tmp/doctor.json
grep -q '"works": true' /tmp/doctor.json
grep -q 'version 2: memory.reclaim' /tmp/doctor.json

none_left() {
    ! ls -d /sys/block/zram* 2>/dev/null && ! ls -d /sys/fs/cgroup/terrace-* 2>/dev/null
}

# until_said FILE TEXT
until_said() {
    patience=600
    until grep -q "$2" "$1"; do
        patience=$((patience - 1))
        [ "$patience" -gt 0 ] || { cat "$1"; echo "not said in time: $2"; return 1; }
        sleep 0.1
    done
}

# A run: 48 MiB in 24, of which everything is looked at in the end.
terrace run --json --engine kernel --fast 24MiB --report /tmp/run.json -- hog 48 3 >/tmp/run.out
cat /tmp/run.out /tmp/run.json
grep -q intact /tmp/run.out
# Emulated, all of Terrace is twenty times as slow, and so is what the kernel does for it.
expect "$(reported /tmp/run.json resident_peak)" -le $((30 << 20)) "the budget holds, by a quarter at most"
expect "$(reported /tmp/run.json reclaimed)" -gt $((16 << 20)) "room was made ahead"
none_left

# memory.high stands 3 % above the budget and the files' pages, and follows `terrace set`.
terrace run --json --engine kernel --fast 24MiB --policy refault --sampling-cap 40% \
    --record /tmp/record --report /tmp/set.json -- hog 48 20 >/tmp/set.out &
run=$!
until_said /tmp/set.out filled
group=$(ls -d /sys/fs/cgroup/terrace-*)
high=$(cat "$group/memory.high")
expect "$high" -ge $((24 << 20)) "the brake is above the budget"
expect "$high" -le $((48 << 20)) "and not far above it"
terrace set "$run" --fast 32MiB
goes_with_it() { [ "$(cat "$group/memory.high")" -gt "$high" ]; }
until_true 15 goes_with_it
terrace metrics --once "$run" >/tmp/metrics
grep '^terrace_kernel_' /tmp/metrics
wait "$run"
grep -q intact /tmp/set.out
grep '"budget"' /tmp/set.json
expect "$(reported /tmp/set.json budget)" -eq $((32 << 20)) "the budget is the new one"
terrace why /tmp/record --last 1
none_left

# A policy that learns by samples has DAMON's, and soft-dirty bits beside it.
terrace run --json --engine kernel --fast 24MiB --policy hemem --sampling-cap 40% \
    --report /tmp/damon.json -- hog 48 12 >/tmp/damon.out
cat /tmp/damon.json
grep -q intact /tmp/damon.out
grep -q '"damon"' /tmp/damon.json
expect "$(reported /tmp/damon.json samples)" -gt 0 "accesses were sampled"
none_left

# Where it is asked for, nothing looks beside it.
terrace run --json --engine kernel --fast 24MiB --policy hemem --sampler damon --sampling-cap 40% \
    --report /tmp/asked.json -- hog 48 3 >/tmp/asked.out
grep -q intact /tmp/asked.out
grep -q '"as asked for"' /tmp/asked.json
none_left

# Idle compressed pages go to a file, where this kernel's zram writes back and there are loop devices.
# A page with one word in it takes some 60 bytes: 24 MiB of them far less than one.
if load loop && grep -q . /tmp/run.json && [ -e /dev/loop-control ]; then
    mkdir -p /tmp/spill
    terrace run --json --engine kernel --fast 24MiB --spill /tmp/spill/file --spill-size 1GiB \
        --store-limit 64KiB --report /tmp/spill.json --record /tmp/spill.record \
        -- hog 48 60 >/tmp/spill.out &
    run=$!
    # Twice what is expected below, in pages. If it never comes, the report says so.
    is_written() { [ "$(cat /sys/block/zram*/bd_stat 2>/dev/null | awk '{ print $3 }')" -ge 512 ]; }
    patience=60
    until is_written 2>/dev/null || [ "$patience" -eq 0 ]; do
        patience=$((patience - 1))
        sleep 1
    done
    kill -USR1 "$(pidof hog)" || true
    wait "$run"
    cat /tmp/spill.json
    grep -q intact /tmp/spill.out
    grep -q '"writes_back": true' /tmp/spill.json
    expect "$(reported /tmp/spill.json written)" -gt $((1 << 20)) "idle pages were written"
    terrace why /tmp/spill.record --class reclaim --last 1 >/tmp/spill.why
    cat /tmp/spill.why
    grep -q 'swap->file (StoreFull): FORCED' /tmp/spill.why
    [ -z "$(ls -A /tmp/spill)" ]
    none_left
else
    echo "no loop devices in this kernel: zram's writeback NOT run"
fi

# A group of somebody else's, as a container runtime makes them: its processes, those of groups
# below, and no limit of it is changed.
mkdir -p /sys/fs/cgroup/pod
echo +memory >/sys/fs/cgroup/pod/cgroup.subtree_control
mkdir -p /sys/fs/cgroup/pod/container
hog 48 15 >/tmp/pod.out &
program=$!
echo "$program" >/sys/fs/cgroup/pod/container/cgroup.procs
until_said /tmp/pod.out filled
terrace attach --json --engine kernel --cgroup pod --fast 20MiB --sampling-cap 40% --for 8s \
    --report /tmp/pod.json
cat /tmp/pod.json
expect "$(reported /tmp/pod.json resident)" -le $((21 << 20)) "it is within its budget"
expect "$(cat /sys/fs/cgroup/pod/memory.high)" = max "and no limit of it was changed"
wait "$program"
grep -q intact /tmp/pod.out
rmdir /sys/fs/cgroup/pod/container /sys/fs/cgroup/pod
none_left

# Governed: idle memory leaves as far as the group's stall times allow, by its age. Half of the time goes
# to the forecast.
terrace govern --json --mode enforce --target 5% --report /tmp/govern.json -- hog 64 64 >/tmp/govern.out
cat /tmp/govern.json
grep -q intact /tmp/govern.out
# The last interval's: whichever of both was the greater.
grep -Eq '"source": "(pressure|refaults)"' /tmp/govern.json
expect "$(reported /tmp/govern.json asked)" -gt $((1 << 20)) "memory was put out"
expect "$(reported /tmp/govern.json age)" -gt 0 "and its age was known"
none_left

# Killed: the program is bounded by nothing at once, goes on, and nothing is left when it has ended,
# although nobody calls `clean`.
terrace run --quiet --engine kernel --fast 24MiB -- hog 48 15 >/tmp/kill.out &
run=$!
until_said /tmp/kill.out filled
group=$(ls -d /sys/fs/cgroup/terrace-*)
expect "$(cat "$group/memory.high")" != max "it is bounded"
kill -9 "$run"
wait "$run" || true
patience=300
until [ "$(cat "$group/memory.high")" = max ]; do
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { echo "memory.high stays"; exit 1; }
    sleep 0.1
done
until_said /tmp/kill.out intact
patience=300
until none_left; do
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { terrace clean; exit 1; }
    sleep 0.2
done
[ "$(terrace clean)" = "nothing was left behind" ]
