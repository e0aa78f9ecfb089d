#!/usr/bin/env bash
# Records the programs of Kindle's Figures 5 and 6, so that they can be replayed
# in place of the algorithms that come with Terrace.
#
#   bench/kindle/record.sh TERRACE DIRECTORY [SCALE]
set -euo pipefail

terrace=$1
directory=$2
scale=${3:-16}
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$directory"
cc -O2 -o "$directory/programs" "$here/programs.c" -lm
options=()
for program in pagerank sssp ycsb; do
    "$terrace" record -o "$directory/$program.trace" -- "$directory/programs" "$program" "$scale"
    options+=(--trace "$program=$directory/$program.trace")
done
echo "now: $terrace reproduce kindle ${options[*]}"
