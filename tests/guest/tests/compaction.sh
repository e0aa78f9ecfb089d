# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Memory without a free block of 2 MiB, and a program whose profile says that huge pages pay: the
# kernel would have to move pages together, which is proposed, priced, and explained afterwards.
. /tests/lib.sh
# So that the kernel moves pages for nobody else: neither ahead of need, nor where pages of different
# kinds came into one block, nor for whoever merely may have huge pages. And all of memory can be filled:
# for huge pages, some 20 MiB would be left free.
echo 0 >/proc/sys/vm/compaction_proactiveness
echo 0 >/proc/sys/vm/watermark_boost_factor
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
echo madvise >/sys/kernel/mm/transparent_hugepage/defrag
echo 1024 >/proc/sys/vm/min_free_kbytes

# Free blocks of 2 MiB that programs could have.
free_blocks() {
    awk '$4 != "DMA" { for (i = 14; i <= NF; i++) n += $i * 2 ^ (i - 14) } END { print n + 0 }' \
        /proc/buddyinfo
}

# Each huge page of a large mapping averts 10 Gcycles of page walks in 1000 s: it pays whatever it takes
# to make one.
echo 'huge,mmap,10000000000,len,>,0x1000000' >/tmp/rules.csv
terrace profile import --horizon 1000s --output /tmp/pays.profile /tmp/rules.csv

mkfifo /tmp/hold
fragment all </tmp/hold >/tmp/fragment.out 2>&1 &
fragmenter=$!
exec 9>/tmp/hold
until grep -q ready /tmp/fragment.out; do
    kill -0 "$fragmenter" || { cat /tmp/fragment.out /proc/buddyinfo; dmesg | tail -n 20; exit 1; }
    sleep 0.1
done
cat /proc/buddyinfo

# One run; whether a compaction was proposed in it.
is_proposed() {
    blocks=$(free_blocks)
    terrace run --engine pager --fast 128MiB --profile /tmp/pays.profile --record /tmp/decisions \
        --json --report /tmp/report.json -- hog-managed 48 2 >/tmp/hog.out 2>/tmp/hog.err
    grep -q intact /tmp/hog.out || { cat /tmp/hog.out /tmp/hog.err; exit 1; }
    terrace why /tmp/decisions --class compact --last 1000 >/tmp/why
    grep -q 'compact [0-9]* pages* for 1 block (NoFreeBlock): PASSED' /tmp/why
}
# What has ended meanwhile may leave a block behind, and a huge page of an earlier run does. A run takes
# what there is before it wants more.
runs=5
until is_proposed; do
    echo "$blocks blocks were free before the run, and none had to be made"
    runs=$((runs - 1))
    [ "$runs" -gt 0 ] || { cat /tmp/hog.err /tmp/report.json /tmp/why /proc/buddyinfo; exit 1; }
done
cat /tmp/hog.err
sed -n '/"huge"/,/}/p' /tmp/report.json
head -n 20 /tmp/why
grep -q 'evidence: 1 free block, 1 of them wanted, for [0-9]* moved page' /tmp/why
# Both sides of the price.
grep -q '+ saved page walks' /tmp/why
grep -q -- '- copy ' /tmp/why
grep '^compact_' /proc/vmstat
terrace why /tmp/decisions --class first-touch --last 1

exec 9>&-
wait "$fragmenter"
