#!/usr/bin/env bash
# Checks licences, sources and duplicate versions of every dependency with
# cargo-deny, which is built once into ~/.cargo/bin if it is not there.
#
# Advisories need the advisory database from a git host. They are checked where
# that can be reached, and left out, with a word about it, where it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."

# The version that deny.toml is written for.
version=0.20.2

# A debug build takes a minute where a release build takes five, and checks as well.
if ! cargo deny --version >/dev/null 2>&1; then
    echo "building cargo-deny $version (once)"
    cargo install cargo-deny --version "$version" --locked --debug --quiet
fi

cargo deny check --hide-inclusion-graph licenses bans sources
if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny check --hide-inclusion-graph advisories
else
    echo "deny: the advisory database cannot be reached from here: advisories NOT checked"
fi
