# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# What may happen instead of what the daemon wants: pages of a block cannot move, the kernel has no
# memory for a block or is busy with it, a program fills the memory that was about to leave, a pool
# goes away. The daemon says so, goes on, and nobody is killed. The last of it takes a DIMM out of
# the machine: only what needs no more than the device comes after it (provision_unbound).
. /tests/lib.sh
load pmem
load dax
# Not every kernel has these.
for module in /modules/inject/*.ko; do
    if [ -e "$module" ]; then insmod "$module"; fi
done
if [ ! -e /sys/bus/dax/devices/dax0.0 ]; then
    terrace provision reload namespace0.0 --destroy
fi
# configured HOLD DEADLINE
configured() {
    cat <<CONFIG
provision = 1
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "$1"
[offline]
headroom = "32MiB"
deadline = "$2"
pause = "2s"
unbind-after = "1s"
CONFIG
}
# pin MIB: a program whose pages cannot move, all over so much memory; $pinned is its number.
pin() {
    : >/tmp/pinned
    pinned "$1" 1000 >/tmp/pinned 2>&1 &
    pinned=$!
    until_true 60 grep -q pinned /tmp/pinned
}
unpin() {
    kill "$pinned"
    wait "$pinned" || true
}
# said PATTERN: the daemon did.
said() { grep -E "$1" /tmp/daemon || { cat /tmp/daemon; return 1; }; }
is_under_way() { terrace provision status --state /tmp/state | grep -q "$1"; }

echo "a block whose pages cannot move is kept, and left alone"
configured 1s 3s >/tmp/faults.toml
start_daemon /tmp/faults.toml
pin 700
until_true 90 grep -q 'take memory block .* offline .*: interrupted: its 3.00 s are over; left alone for' /tmp/daemon
expect "$(blocks 1 online)" -gt 0 "what refuses stays online"
# What nobody has pinned has left meanwhile, or does now.
hog 300 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(tail -n 1 /tmp/hog)" = intact "and programs can use it"
unpin
until_true 120 all_offline 1
stop_daemon

echo "a program fills the memory that was about to leave"
configured 1s 100s >/tmp/faults.toml
start_daemon /tmp/faults.toml
pin 700
# The first block of several: it does not leave, and the others wait.
until_true 90 is_under_way 'take memory block'
until_true 30 is_under_way 'more for node 0'
hog 900 3 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(tail -n 1 /tmp/hog)" = intact "the program has the memory"
said 'failed after .*: take memory block .*: interrupted: (its node is short|only .* are free)'
said '(given up: its node is short|not begun: take memory block)'
unpin
until_true 120 all_offline 1
stop_daemon

# What the kernel answers can be chosen, where it has the module for that.
if [ -d /sys/module/memory_notifier_error_inject ]; then
    mkdir -p /sys/kernel/debug
    mount -t debugfs none /sys/kernel/debug 2>/dev/null || true
    answers=/sys/kernel/debug/notifier-error-inject/memory/actions
    configured 2s 3s >/tmp/faults.toml
    start_daemon /tmp/faults.toml

    echo "the kernel has no memory for a block"
    echo -12 >$answers/MEM_GOING_ONLINE/error
    hog 200 30 >/tmp/hog 2>&1 &
    hog=$!
    until_true 60 grep -q 'bring memory block .* online .*: .*Cannot allocate memory (os error 12)' /tmp/daemon
    expect "$(blocks 1 online)" -eq 0 "none came"
    echo 0 >$answers/MEM_GOING_ONLINE/error
    until_true 60 grep -q 'done in .*bring memory block' /tmp/daemon

    echo "the kernel is busy with a block"
    echo -16 >$answers/MEM_GOING_OFFLINE/error
    kill "$hog"
    wait "$hog" || true
    until_true 60 grep -q 'take memory block .* offline .*: .*busy (os error 16); left alone for' /tmp/daemon
    echo 0 >$answers/MEM_GOING_OFFLINE/error
    until_true 120 all_offline 1
    stop_daemon
else
    echo "NOT TESTED: this kernel has no module memory-notifier-error-inject (live/tests.rs has it)"
fi

echo "a pool goes away while it is in use"
configured 60s 3s >/tmp/faults.toml
start_daemon /tmp/faults.toml
hog 700 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(blocks 1 online)" -gt 2 "some of it is online"
first=$(echo /sys/devices/system/node/node1/memory[0-9]* | tr ' ' '\n' | sort -V | head -n 1)
for dimm in /sys/bus/acpi/devices/PNP0C80:*; do
    if [ -e "$dimm/eject" ] && [ "$(cat "$dimm/status")" -ne 0 ]; then
        echo "$(cat "$dimm/path") is taken out"
        echo 1 >"$dimm/eject" || true
    fi
done
until_true 60 test ! -e "$first"
sleep 2
kill -0 "$daemon"
terrace provision status --state /tmp/state
terrace provision plan
# What is left near the node is the device.
hog 500 3 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(tail -n 1 /tmp/hog)" = intact "the daemon brings in what is left"
stop_daemon
