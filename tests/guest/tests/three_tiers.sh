# shellcheck shell=sh disable=SC1091,SC2154
# Fast node, slow node, swap on zram: three tiers from a ladder file.
. /tests/lib.sh
for module in /modules/*.ko; do insmod "$module"; done
echo 128M >/sys/block/zram0/disksize
mkswap /dev/zram0
swapon /dev/zram0
cat >/tmp/ladder.toml <<LADDER
ladder = 1

[[tier]]
memory = "numa:0"
capacity = "8MiB"

[[tier]]
memory = "numa:1"
capacity = "16MiB"

[[tier]]
memory = "swap"
LADDER
terrace check /tmp/ladder.toml
start_hotset write 64 6 8
terrace attach --sampling-cap 40% --pid "$program" --tiers /tmp/ladder.toml --for 20s --json \
    --report /tmp/report.json
stop_hotset
cat /tmp/report.json
swapoff /dev/zram0
expect "$(placed hot node0)" -ge 1400 "hot pages on the fast node"
# 16 MiB are 4096 pages.
node1=$(($(placed hot node1) + $(placed cold-fast node1) + $(placed cold-before node1) + $(placed cold-after node1)))
absent=$(($(placed hot absent) + $(placed cold-fast absent) + $(placed cold-before absent) + $(placed cold-after absent)))
expect "$node1" -le 4200 "the slow node's capacity is kept"
expect "$absent" -ge 9000 "the rest is in swap"
