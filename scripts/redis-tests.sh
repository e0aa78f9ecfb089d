#!/usr/bin/env bash
# Fetches redis's own test suite, of the version that is installed, from Debian's or
# Ubuntu's source package (3 MiB; nothing is built).
#
#   scripts/redis-tests.sh DIRECTORY
#
# Leaves `runtest` and what it needs in DIRECTORY. Sources are looked up with lists
# of our own: the system's package lists stay as they are.
set -euo pipefail

to=$1
if ! command -v tclsh >/dev/null; then
    echo "redis-tests.sh: tclsh is missing (scripts/setup.sh foreign installs it)" >&2
    exit 1
fi
if [ -x "$to/runtest" ]; then exit 0; fi
version=$(dpkg-query -W -f '${source:Version}' redis-server)
mkdir -p "$to"
scratch=$(mktemp -d "$to/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
# The mirrors that binary packages come from, but for their sources.
{
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb \(\[[^]]*\] \)\?/deb-src /p' || true
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '
        /^URIs:/ { uris = $0; sub(/^URIs: */, "", uris) }
        /^Suites:/ { suites = $0; sub(/^Suites: */, "", suites) }
        /^Components:/ {
            components = $0; sub(/^Components: */, "", components)
            n = split(uris, u, " "); m = split(suites, s, " ")
            for (i = 1; i <= n; i++) for (j = 1; j <= m; j++)
                print "deb-src", u[i], s[j], components
        }' || true
} >"$scratch/sources.list"
apt=(apt-get -qq -o "Dir::Etc::SourceList=$scratch/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o APT::Sandbox::User=root
    -o Acquire::Retries=3)
# A mirror may be out of reach for a moment; apt itself tries again within seconds only.
for pause in 5 20 0; do
    if "${apt[@]}" update &&
        (cd "$scratch" && "${apt[@]}" source --download-only "redis=$version" >/dev/null); then
        break
    fi
    [ "$pause" -gt 0 ] || exit 1
    echo "redis-tests.sh: the sources did not come; again in $pause s" >&2
    sleep "$pause"
done
tar -xzf "$scratch"/redis_*.orig.tar.gz -C "$scratch"
mv "$scratch"/redis-*/tests "$scratch"/redis-*/runtest "$to"/
mkdir -p "$to/src"
for program in server cli benchmark sentinel check-aof check-rdb; do
    if command -v "redis-$program" >/dev/null; then
        ln -sf "$(command -v "redis-$program")" "$to/src/redis-$program"
    fi
done
cp "$scratch"/redis-*/redis.conf "$to"/ 2>/dev/null || true
