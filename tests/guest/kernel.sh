# shellcheck shell=bash
# What guests are made of: the programs that boot them, and a stock Debian kernel. Sourced
# by guest.sh and by bench/nodes/run.sh. The kernel comes from Debian's package, is kept
# in $GUEST_CACHE, and is never installed; GUEST_KERNEL names another one. GUEST_SERIES=6.1 takes
# Debian 12's own kernel instead of the newest; tests that need later ones fail there. GUEST_FLAVOUR=full takes
# the kernel for all machines instead of that for virtual ones: it has F2FS, and is three times as
# large.
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace-guest}

# This machine cannot have a guest; says why.
cannot() {
    echo "${0##*/}: $*" >&2
    exit 77
}

for program in qemu-system-x86_64 cpio gzip; do
    command -v "$program" >/dev/null || cannot "$program is missing (scripts/setup.sh guest installs it)"
done
busybox=$(command -v busybox) || cannot "busybox is missing (busybox-static)"
if ldd "$busybox" >/dev/null 2>&1; then
    cannot "$busybox is linked dynamically (that of busybox-static is not)"
fi
# The kernel's modules that tests load, in the order in which they need each other:
# swap in RAM, RAM that looks like persistent memory, persistent memory that is a
# device of the firmware's (an NVDIMM), for programs or for the kernel, and memory of a
# virtual machine that its host gives and takes.
zram_modules="lz4_compress lz4hc_compress lz4_decompress zstd_compress 842_compress \
    842_decompress zsmalloc zram"
pmem_modules="libnvdimm nd_btt nd_pmem nd_e820"
dax_modules="nfit dax_pmem device_dax kmem"
virtio_modules="virtio_balloon virtio_mem"
# Block devices that a program serves; and a file system that the cloud kernel lacks.
ublk_modules="ublk_drv"
nbd_modules="nbd"
# What has the kernel refuse to bring memory online or take it offline.
inject_modules="notifier-error-inject memory-notifier-error-inject"
# Files as block devices.
loop_modules="loop"
f2fs_modules="crc32_generic crc32_pclmul lz4_compress lz4hc_compress lz4_decompress zstd_compress f2fs"

# unpack_modules TREE PURPOSE NAME...: those that the kernel has, numbered.
unpack_modules() {
    local tree=$1 to=$cache/new/modules/$2 order=100 module file
    shift 2
    mkdir -p "$to"
    for module in "$@"; do
        # One of the two is missing, which is no failure.
        file=$({ find "$tree/lib/modules" "$tree/usr/lib/modules" -path '*/kernel/*' \
            -name "$module.ko*" 2>/dev/null || true; } | sed -n 1p)
        [ -n "$file" ] || continue
        order=$((order + 1))
        case $file in
        *.xz) xz -dc "$file" >"$to/$order-$module.ko" ;;
        *.zst) zstd -qdc "$file" >"$to/$order-$module.ko" ;;
        *) cp "$file" "$to/$order-$module.ko" ;;
        esac
    done
}

# The newest kernel that the distribution has: PAGEMAP_SCAN wants 6.7, and managing
# memory 6.8.
fetch_kernel() {
    command -v apt-get >/dev/null || cannot "no apt-get to take a kernel from; set GUEST_KERNEL"
    local meta package='' deb metas="linux-image-6.12-cloud-amd64 linux-image-cloud-amd64"
    [ "${GUEST_FLAVOUR-}" != full ] || metas="linux-image-6.12-amd64 linux-image-amd64"
    local series=${GUEST_SERIES-}
    # It is what Debian 12 calls by no number.
    [ "$series" != 6.1 ] || metas="linux-image-cloud-amd64"
    for meta in $metas; do
        package=$(apt-cache depends "$meta" 2>/dev/null |
            sed -n "s/^ *Depends: \(linux-image-${series:-[0-9]}.*\)/\1/p" | head -n 1)
        [ -n "$package" ] && break
    done
    [ -n "$package" ] || cannot "the package sources have no cloud kernel${series:+ of series $series}"
    mkdir -p "$cache"
    local wanted="$zram_modules $pmem_modules $dax_modules $virtio_modules $ublk_modules $nbd_modules $inject_modules $loop_modules $f2fs_modules"
    if [ "$(cat "$cache/$package/wanted" 2>/dev/null)" != "$wanted" ]; then
        echo "${0##*/}: fetching $package" >&2
        rm -rf "$cache/new"
        mkdir -p "$cache/new"
        (cd "$cache/new" && apt-get -o Acquire::Retries=3 download -qq "$package" >&2) ||
            cannot "$package cannot be downloaded"
        deb=$(echo "$cache"/new/*.deb)
        dpkg-deb -x "$deb" "$cache/new/tree"
        cp "$cache"/new/tree/boot/vmlinuz-* "$cache/new/vmlinuz"
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" zram $zram_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" pmem $pmem_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" dax $dax_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" virtio $virtio_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" ublk $ublk_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" nbd $nbd_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" inject $inject_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" loop $loop_modules
        # shellcheck disable=SC2086
        unpack_modules "$cache/new/tree" f2fs $f2fs_modules
        rm -rf "$cache/new/tree" "$deb"
        echo "$wanted" >"$cache/new/wanted"
        rm -rf "${cache:?}/$package"
        mv "$cache/new" "$cache/$package"
    fi
    kernel=$cache/$package/vmlinuz
    modules=$cache/$package/modules
}

# Sets `kernel`, and `modules` where there are some.
# shellcheck disable=SC2034
find_kernel() {
    modules=
    if [ -n "${GUEST_KERNEL-}" ]; then
        kernel=$GUEST_KERNEL
    else
        fetch_kernel
    fi
}
