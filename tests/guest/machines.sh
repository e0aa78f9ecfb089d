# shellcheck shell=bash
# The machines that guests can be. Sourced by guest.sh.
#
# Emulated, so that they run wherever the tests run. The kernel takes blocks of 128 MiB that lie
# at multiples of that, and the first 2 MiB of an NVDIMM are not its own. No memory is set aside
# for devices that cannot reach it (`swiotlb`): there are none.
#
# All processors are emulated by one thread: with a thread each, QEMU can run an instruction that
# the other processor is just patching, and the kernel dies of a breakpoint it no longer knows
# ("Oops: int3" while it boots). On a busy host its timer may come too late for a check of the
# kernel's (`no_timer_check`).

# backend NAME SIZE: memory of the host for a node or a device.
backend() { echo "-object memory-backend-ram,id=$1,size=$2"; }

# distance FROM TO VALUE
distance() { echo "-numa dist,src=$1,dst=$2,val=$3"; }

# machine NAME SOCKET: sets `hardware` and `append`, the kernel's command line. SOCKET is where
# QEMU may be asked.
machine() {
    local -a parts
    append=
    case $1 in
    # Distances as of CXL memory. 64 MiB of node 0 are persistent memory to the kernel (`memmap`).
    # Node 2 is an NVDIMM: none until it is given to the kernel as memory. 258 MiB are one block.
    two-nodes)
        parts=(
            -m "832M,slots=1,maxmem=2G" -smp 2 -cpu max
            "$(backend m0 448M)" -numa "node,nodeid=0,cpus=0-1,memdev=m0"
            "$(backend m1 384M)" -numa "node,nodeid=1,memdev=m1"
            -numa "node,nodeid=2"
            "$(backend dax 258M)" -device "nvdimm,memdev=dax,node=2"
            "$(distance 0 1 25)" "$(distance 0 2 30)" "$(distance 1 2 40)"
        )
        append="memmap=64M!256M"
        ;;
    # 512 MiB of DRAM and nothing else, for what fills all of it.
    small) parts=(-m 512M -smp 2 -cpu max) ;;
    # 512 MiB of DRAM, of which the initial file system takes up to 130; near it six blocks that are offline at boot and an NVDIMM of three.
    hidden)
        parts=(
            -m "512M,slots=4,maxmem=8G" -smp 1 -cpu "max,-cx16"
            "$(backend m0 512M)" -numa "node,nodeid=0,cpus=0,memdev=m0"
            -numa "node,nodeid=1"
            "$(distance 0 1 17)"
            "$(backend near 768M)" -device "pc-dimm,id=near0,memdev=near,node=1"
            "$(backend dax 514M)" -device "nvdimm,id=dax0,memdev=dax,node=1"
        )
        append="memhp_default_state=offline"
        ;;
    # 512 MiB of DRAM, near it an NVDIMM of six blocks; and a block that is offline in the
    # processors' own node.
    floors)
        parts=(
            -m "512M,slots=4,maxmem=8G" -smp 1 -cpu "max,-cx16"
            "$(backend m0 512M)" -numa "node,nodeid=0,cpus=0,memdev=m0"
            -numa "node,nodeid=1"
            "$(distance 0 1 17)"
            "$(backend own 128M)" -device "pc-dimm,id=own0,memdev=own,node=0"
            "$(backend near 898M)" -device "nvdimm,id=dax0,memdev=near,node=1"
        )
        append="memhp_default_state=offline"
        ;;
    # The DRAM with that of another socket (node 1, at 21), an NVDIMM near (17) and one far away.
    sockets)
        parts=(
            -m "768M,slots=4,maxmem=8G" -smp 1 -cpu "max,-cx16"
            "$(backend m0 512M)" -numa "node,nodeid=0,cpus=0,memdev=m0"
            "$(backend m1 256M)" -numa "node,nodeid=1,memdev=m1"
            -numa "node,nodeid=2" -numa "node,nodeid=3"
            "$(distance 0 1 21)" "$(distance 0 2 31)" "$(distance 0 3 17)"
            "$(distance 1 2 17)" "$(distance 1 3 31)" "$(distance 2 3 40)"
            "$(backend far 514M)" -device "nvdimm,id=dax0,memdev=far,node=2"
            "$(backend near 514M)" -device "nvdimm,id=dax1,memdev=near,node=3"
        )
        append="memhp_default_state=offline memory_hotplug.memmap_on_memory=1"
        ;;
    # A virtual machine whose memory its host gives it (virtio-mem), by QEMU's socket.
    virtual)
        parts=(
            -m "512M,slots=1,maxmem=4G" -smp 1 -cpu "max,-cx16"
            "$(backend m0 512M)" -numa "node,nodeid=0,cpus=0,memdev=m0"
            "$(backend more 1G)"
            -device "virtio-mem-pci,id=more0,memdev=more,node=0,requested-size=0"
            -device "virtio-balloon-pci,id=balloon0"
            -qmp "unix:$2,server=on,wait=off"
        )
        # shellcheck disable=SC2034 # guest.sh uses it
        append="memhp_default_state=online_movable"
        ;;
    *)
        echo "guest.sh: there is no machine $1" >&2
        exit 2
        ;;
    esac
    # shellcheck disable=SC2206,SC2034 # words on purpose; guest.sh uses it
    hardware=(-machine "q35,nvdimm=on" -accel "tcg,thread=single" ${parts[*]})
}
