# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# A spill file on a file system that is mounted with DAX, used as memory.
. /tests/lib.sh
load pmem
mkfs.ext4 -q -b 4096 /dev/pmem0
mkdir /tmp/pmem
mount -t ext4 -o dax /dev/pmem0 /tmp/pmem
(cd /tmp/pmem && terrace doctor) >/tmp/doctor
grep -A 5 'spill file' /tmp/doctor
grep -q 'as memory (`dax:FILE`)  *yes' /tmp/doctor
grep -q 'mounted with DAX  */tmp/pmem$' /tmp/doctor
(cd /tmp && terrace doctor) >/tmp/doctor
grep -q 'as memory (`dax:FILE`)  *no' /tmp/doctor
# As the hazard suite runs them; what they print is an error.
for hazard in patterns fork_both_write sys_mlock; do
    HAZARD_MANAGED=1 terrace run --fast 1MiB --store-limit 64KiB --spill dax:/tmp/pmem/cold \
        --json --report /tmp/report.json -- "/hazards/$hazard" >/tmp/said 2>&1
    cat /tmp/said
    expect "$(wc -c </tmp/said)" -eq 0 "$hazard passes and says nothing"
    expect "$(reported /tmp/report.json spill_written)" -gt 0 "bytes were written"
    expect "$(reported /tmp/report.json spill_read)" -gt 0 "and read"
done
umount /tmp/pmem
