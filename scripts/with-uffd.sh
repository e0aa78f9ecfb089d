#!/usr/bin/env bash
# Runs a command as the calling user with what managing memory needs:
# CAP_SYS_PTRACE, by which userfaultfd serves system calls and reports forks.
# Root has it; for others sudo hands on this one capability and nothing else.
#
#   scripts/with-uffd.sh COMMAND ARGUMENTS...
set -euo pipefail

# Bit 19 of the effective capabilities.
effective=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
if (((16#$effective >> 19) & 1)); then
    exec "$@"
fi
if ! command -v sudo >/dev/null || ! command -v setpriv >/dev/null; then
    echo "with-uffd.sh: CAP_SYS_PTRACE is needed, and sudo with setpriv to get it" >&2
    exit 3
fi
exec sudo --preserve-env env "PATH=$PATH" "HOME=$HOME" setpriv \
    --reuid "$(id -u)" --regid "$(id -g)" --init-groups \
    --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace -- "$@"
