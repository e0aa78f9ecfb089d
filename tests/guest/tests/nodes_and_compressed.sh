# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Fast node, slow node, compressed memory: the pager keeps what fits both nodes resident,
# and of that the hot pages come to the fast one.
. /tests/lib.sh
cat >/tmp/ladder.toml <<LADDER
ladder = 1

[[tier]]
memory = "numa:0"
capacity = "6MiB"

[[tier]]
memory = "numa:1"
capacity = "8MiB"

[[tier]]
memory = "compressed"
LADDER
terrace check /tmp/ladder.toml | grep -q 'numa:0.*numa:1.*compressed'
: >/tmp/hotset.out
terrace run --tiers /tmp/ladder.toml --sampling-cap 40% --json --report /tmp/report.json \
    --watch=500ms --watch-to /tmp/watch.jsonl -- \
    hotset-managed write 24 3 6 >/tmp/hotset.out &
terrace=$!
until_ready "$terrace"
program=$(pidof hotset-managed)
# 24 MiB are 6144 pages; 6 MiB 1536, 8 MiB 2048. Some more may be on their way out.
until_placed 120 '[ "$(placed hot node0)" -ge 740 ] && [ "$(in_all node0)" -le 1600 ] && [ "$(in_all absent)" -ge 2450 ]'
terrace top hotset-managed >/tmp/top
terrace top "$program" >/tmp/top-both
terrace metrics --once >/tmp/metrics
# Ends the program by way of terrace, which hands the signal on.
program=$terrace
stop_hotset
cat /tmp/report.json
expect "$(placed hot node0)" -ge 740 "hot pages on the fast node"
expect "$(in_all node0)" -le 1700 "the fast node's capacity is kept"
expect "$(in_all absent)" -ge 2450 "the rest is compressed"
expect "$(grep -c '"nodes": {' /tmp/report.json)" -eq 1 "the report has both"
expect "$(reported /tmp/report.json compressions)" -ge 2450 "pages were compressed"
nodes() { sed -n '/"nodes": {/,$p' /tmp/report.json >/tmp/nodes.json && reported /tmp/nodes.json "$1"; }
expect "$(nodes promotions)" -ge 500 "promotions to the fast node"
cat /tmp/top-both
expect "$(grep -c '^terrace: hotset-managed has run' /tmp/top)" -eq 1 "top finds the run by its name"
expect "$(grep -c '^terrace: attached' /tmp/top-both)" -eq 1 "and both by its number"
expect "$(grep -c 'program="hotset-managed (nodes)",tier="numa:1"' /tmp/metrics)" -ge 1 "metrics have both"
expect "$(tail -n 1 /tmp/watch.jsonl | grep -c '"nodes":')" -eq 1 "lines, too"
