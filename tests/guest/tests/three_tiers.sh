# shellcheck shell=sh disable=SC1091,SC2034,SC2154
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
capacity = "10MiB"

[[tier]]
memory = "swap"
LADDER
terrace check /tmp/ladder.toml
start_hotset write 36 4 8
terrace attach --sampling-cap 40% --pid "$program" --tiers /tmp/ladder.toml --for 25s --json \
    --report /tmp/report.json
stop_hotset
cat /tmp/report.json
swapoff /dev/zram0
# 4 MiB are 1024 pages.
expect "$(placed hot node0)" -ge 950 "hot pages on the fast node"
# 10 MiB are 2560 pages; of 9216, 2048 are on the fast node.
node1=$(($(placed hot node1) + $(placed cold-fast node1) + $(placed cold-before node1) + $(placed cold-after node1)))
absent=$(($(placed hot absent) + $(placed cold-fast absent) + $(placed cold-before absent) + $(placed cold-after absent)))
expect "$node1" -le 2600 "the slow node's capacity is kept"
expect "$absent" -ge 4500 "the rest is in swap"
