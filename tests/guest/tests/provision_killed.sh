# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# The daemon is killed at any moment: while it brings memory in, while it takes it away, while
# nothing is the matter. The next one takes over what it finds, and in the end all is as it was.
. /tests/lib.sh
load pmem
load dax
before=$(mem_total)
scale=$(cat /proc/sys/vm/watermark_scale_factor)
if [ ! -e /sys/bus/dax/devices/dax0.0 ]; then
    terrace provision reload namespace0.0 --destroy
fi
cat >/tmp/killed.toml <<CONFIG
provision = 1
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "200ms"
[sampling]
idle = "100ms"
armed = "20ms"
armed-for = "1s"
[offline]
headroom = "32MiB"
unbind-after = "200ms"
CONFIG
round=0
while [ "$round" -lt 24 ]; do
    round=$((round + 1))
    start_daemon /tmp/killed.toml
    # Sometimes it is busy with what the one before has left.
    hog $((500 + round * 20)) >/tmp/hog 2>&1 &
    hog=$!
    # From 0.1 to 2.4 s.
    sleep "$((round / 10)).$((round % 10))"
    kill -KILL "$daemon"
    wait "$daemon" 2>/dev/null || true
    # Without a daemon it may be killed, and not spoiled.
    wait "$hog" || true
    if grep WRONG /tmp/hog; then false; fi
    terrace check /tmp/state/journal
    for block in /sys/devices/system/memory/memory[0-9]*; do
        case $(cat "$block/state") in online | offline) ;; *) cat "$block/state"; false ;; esac
    done
done
start_daemon /tmp/killed.toml
until_true 60 all_offline 1
until_true 30 test ! -e /sys/bus/dax/drivers/kmem/dax0.0
expect "$(mem_total)" -eq "$before" "the machine has the memory that it had"
stop_daemon
expect "$(cat /proc/sys/vm/watermark_scale_factor)" -eq "$scale" \
    "and the setting that the first of them changed"
