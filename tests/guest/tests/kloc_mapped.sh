# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Pages of a file that two processes map. `terrace kloc` leaves them alone: no lease is granted. The
# function that it moves pages by, called without that question, moves them with what is mapped, while
# one of the two writes; where they lie is asked of the two. No content changes.
. /tests/lib.sh
. /kloc.sh
[ -x /bin/move_to_node ] || { echo "move_to_node was not built: make guest"; exit 1; }
load pmem
# The device comes a moment after its modules.
until [ -b /dev/pmem0 ]; do sleep 0.1; done
mkfs.ext4 -q -b 4096 /dev/pmem0
mkdir -p /tmp/files
mount -t ext4 /dev/pmem0 /tmp/files
file=/tmp/files/shared
pages=2048

# until_mapped PROGRAM OUTPUT: until it has begun.
until_mapped() {
    until grep -q '^mapped' "$2"; do
        kill -0 "$1" || { cat "$2"; return 1; }
        sleep 0.1
    done
}
# on NODE PROGRAM OUTPUT: how many of the pages that it maps lie there.
on() {
    said=$(grep -c '^node0=' "$3" || true)
    kill -USR1 "$2"
    until [ "$(grep -c '^node0=' "$3" || true)" -gt "$said" ]; do
        kill -0 "$2" || { cat "$3" >&2; return 1; }
        sleep 0.1
    done
    grep '^node0=' "$3" | tail -n 1 | tr ' ' '\n' | sed -n "s/^node$1=//p"
}
# both_on NODE: whether all pages lie there, by what either says.
both_on() {
    [ "$(on "$1" "$writer" /tmp/writer.out)" -eq "$pages" ] &&
        [ "$(on "$1" "$reader" /tmp/reader.out)" -eq "$pages" ]
}
# move NODE: by the function itself. A page that somebody has in hand for a moment stays, for the next time.
move() {
    patience=60
    until move_to_node "$file" "$1" >/tmp/moved && both_on "$1"; do
        patience=$((patience - 1))
        [ "$patience" -gt 0 ] || { cat /tmp/moved /tmp/writer.out /tmp/reader.out; return 1; }
        sleep 1
    done
    cat /tmp/moved
    expect "$(on "$1" "$writer" /tmp/writer.out)" -eq "$pages" "on node $1, by who writes"
    expect "$(on "$1" "$reader" /tmp/reader.out)" -eq "$pages" "on node $1, by who reads"
}
# ends PROGRAM OUTPUT: it stops, and what it maps is intact.
ends() {
    kill -TERM "$1"
    wait "$1" || { cat "$2"; return 1; }
    tail -n 1 "$2"
    grep -q 'content intact' "$2"
}

: >/tmp/writer.out
: >/tmp/reader.out
mapped write "$file" >/tmp/writer.out &
writer=$!
until_mapped "$writer" /tmp/writer.out
mapped read "$file" >/tmp/reader.out &
reader=$!
until_mapped "$reader" /tmp/reader.out
both_on 0 || { cat /tmp/writer.out /tmp/reader.out; exit 1; }

# Who has moved them is gone when they are asked for.
move 1
move 0

# The machine is always fuller than that: what is closed is to move to node 1. No hook has told of these
# two, who came before; but the lease knows of them.
begin --high 2% --low 1% --device /dev/pmem0
cat "$file" >/dev/null
until_asked 60 '"outcome": "in-use"' why "$file"
cat /tmp/answer
expect "$(grep -c '"outcome": "moved"' /tmp/answer || true)" -eq 0 "nothing of it has moved"
expect "$(on 0 "$writer" /tmp/writer.out)" -eq "$pages" "all of it stays where it was"

# As long as one has it.
ends "$writer" /tmp/writer.out
sleep 2
expect "$(on 0 "$reader" /tmp/reader.out)" -eq "$pages" "one who maps it is enough"
ends "$reader" /tmp/reader.out
until_asked 120 '"outcome": "moved"' why "$file"
cat /tmp/answer
finish
# Whoever maps it now finds it there.
: >/tmp/reader.out
mapped read "$file" >/tmp/reader.out &
reader=$!
until_mapped "$reader" /tmp/reader.out
expect "$(on 1 "$reader" /tmp/reader.out)" -gt 0 "it lies on node 1 then"
ends "$reader" /tmp/reader.out
umount /tmp/files
