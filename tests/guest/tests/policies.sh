# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Policies that rank pages by samples bring a hot set up from the slow node, in place of
# the cold pages that fill the fast one, past the economist: what they say of the pages
# that give way has to be worth something to it. (HeMem has the other tests.)
. /tests/lib.sh
for policy in memtis arms; do
    start_hotset write 16 2 3
    # 2 MiB are 512 pages.
    attach_until 60 '[ "$(placed hot node0)" -ge 480 ]' \
        --pid "$program" --fast numa:0=3MiB --slow numa:1 --policy "$policy"
    stop_hotset
    grep -A 9 '"class"' /tmp/report.json
    expect "$(placed hot node0)" -ge 400 "$policy: hot pages on the fast node"
    expect "$(placed cold-fast node1)" -ge 200 "$policy: cold pages made room"
done
