# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# `terrace run` with a slow node instead of compression: the program keeps
# within its share of the fast node, and its status passes through. Meanwhile it
# is shown: by lines, metrics, and `terrace top`; afterwards as a page.
. /tests/lib.sh
: >/tmp/hotset.out
ifconfig lo 127.0.0.1 up
terrace run --fast 8MiB --slow numa:1 --policy hemem --json --report /tmp/report.json \
    --limit 500MiB/s --sampling-cap 40% --watch=500ms --watch-to /tmp/watch.jsonl \
    --metrics 9464 --report-html /tmp/page.html -- \
    hotset write 32 3 16 >/tmp/hotset.out &
terrace=$!
until_ready "$terrace"
program=$(pidof hotset)
# 8 MiB are 2048 pages; twice as many lay there at the beginning.
until_placed 60 '[ "$(in_all node0)" -le 2048 ]'
# metric SERIES: its value.
metric() { sed -n "s/^$1 \([0-9]*\).*/\1/p" /tmp/metrics; }
who="run=\"$terrace\",program=\"hotset\""
# Figures are published now and then, and emulation is slow.
patience=60
scrape() { wget -q -O /tmp/metrics http://127.0.0.1:9464/metrics; }
scrape
# Not what was published while the program still filled its memory, of which less lay there.
until [ "$(metric "terrace_tier_bytes{$who,tier=\"numa:0\"}")" -le 8912896 ] &&
    [ "$(metric "terrace_demotions_total{$who}")" -ge 1500 ] &&
    [ "$(metric "terrace_samples_total{$who}")" -gt 0 ]; do
    [ "$patience" -gt 0 ] || break
    patience=$((patience - 1))
    sleep 1
    scrape
done
terrace top hotset >/tmp/top
terrace top hotset --json --interval 1s >/tmp/top.json
# Ends the program by way of terrace, which hands the signal on.
program=$terrace
stop_hotset
cat /tmp/report.json
expect "$(in_all node0)" -le 2100 "the budget is kept"
expect "$(placed cold-fast node1)" -ge 1500 "what was too much left"
grep '^terrace_' /tmp/metrics
expect "$(metric "terrace_tier_bytes{$who,tier=\"numa:0\"}")" -le 8912896 "the fast node, by metrics"
expect "$(metric "terrace_tier_bytes{$who,tier=\"numa:1\"}")" -ge 6291456 "the slow node"
expect "$(metric "terrace_demotions_total{$who}")" -ge 1500 "demotions"
expect "$(metric "terrace_moved_bytes_total{$who}")" -ge 6144000 "traffic"
cat /tmp/top
expect "$(grep -c '^terrace: attached to hotset' /tmp/top)" -eq 1 "top finds it"
expect "$(grep -c '"memory": "numa:1"' /tmp/top.json)" -eq 1 "and knows its tiers"
tail -n 1 /tmp/watch.jsonl
lines=$(grep -c '"kind":"terrace.attach-watch"' /tmp/watch.jsonl)
expect "$lines" -ge 4 "lines"
# last FIELD: a number of the last line, from the limit on.
last() {
    tail -n 1 /tmp/watch.jsonl | sed 's/.*"limit":/"limit":/' |
        grep -o "\"$1\":[0-9]*" | sed 's/.*://;q'
}
expect "$(last limit)" -eq 524288000 "the limit that was asked for"
for field in sampling samples; do
    expect "$(last $field)" -gt 0 "$field"
    expect "$(last $field)" -eq "$(reported /tmp/report.json $field)" "the last line's $field"
done
for tier in numa:0 numa:1; do
    expect "$(tail -n 1 /tmp/watch.jsonl | grep -c "\"memory\":\"$tier\"")" -eq 1 "$tier in it"
done
expect "$(grep -c 'Residency over time' /tmp/page.html)" -ge 1 "the page has its pictures"
status=0
terrace run --fast 8MiB --slow numa:1 --quiet -- sh -c 'exit 7' || status=$?
expect "$status" -eq 7 "the program's status"
