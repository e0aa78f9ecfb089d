#!/usr/bin/env bash
# What `terrace kloc run` costs and keeps, beside its peers, as two tables. For root.
#
#   bench/kloc/run.sh TARGET [costs|misses]
#
# TARGET is the directory of what was built (target/release). Where it takes place scene.sh says; the
# group's limit is KLOC_GROUP_MIB (256). KLOC_HOOKS names the set of hooks that `misses` is measured with.
set -euo pipefail

target=${1:?usage: run.sh TARGET [costs|misses]}
what=${2:-all}
limit=$((${KLOC_GROUP_MIB:-256} << 20))
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/kloc/scene.sh
. "$here/scene.sh"

scene bench 3G
bench=$target/examples/kloc_bench
if [ "$what" != misses ]; then
    "$bench" costs "$target/terrace" "$mount"
fi
if [ "$what" != costs ]; then
    scene_group
    group_limit "$limit"
    "$bench" misses "$target/terrace" "$mount" "$group"
fi
