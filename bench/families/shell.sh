#!/usr/bin/env bash
# A shell that has mapped some 100 MiB and begins 300 programs, one after the other. For decision 0013.
# Usage: shell.sh; terrace run --engine pager --fast 150MiB -- bash shell.sh
text=$(head -c 20000000 /dev/zero | tr '\0' 'x')
# Kept, to be inherited by each.
copy=$text
start=$(date +%s%N)
for _ in {1..300}; do /bin/true; done
end=$(date +%s%N)
echo "$(((end - start) / 300000)) us for each, with $((${#text} + ${#copy})) characters"
