# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Fast node, slow node, swap on zram: three tiers from a ladder file.
. /tests/lib.sh
load zram
echo 128M >/sys/block/zram0/disksize
mkswap /dev/zram0
swapon /dev/zram0
cat >/tmp/ladder.toml <<LADDER
ladder = 1

[migration]
limit = "4GiB/s"
threads = 2

[[tier]]
memory = "numa:0"
capacity = "6MiB"

[[tier]]
memory = "numa:1"
capacity = "8MiB"

[[tier]]
memory = "swap"
LADDER
terrace check /tmp/ladder.toml
start_hotset write 24 3 6
# 24 MiB are 6144 pages; 6 MiB 1536, 8 MiB 2048.
attach_until 120 '[ "$(placed hot node0)" -ge 740 ] && [ "$(in_all node1)" -le 2048 ] && [ "$(in_all absent)" -ge 2450 ]' \
    --pid "$program" --tiers /tmp/ladder.toml
stop_hotset
cat /tmp/report.json
swapoff /dev/zram0
expect "$(placed hot node0)" -ge 740 "hot pages on the fast node"
expect "$(in_all node1)" -le 2100 "the slow node's capacity is kept"
expect "$(in_all absent)" -ge 2450 "the rest is in swap"
