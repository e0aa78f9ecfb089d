# An hour of a node of 128 GiB whose demand rises and falls between 10 and 100 GiB every twenty
# minutes, a look a second, as `terrace provision record` writes it. Its watermarks are those that the
# kernel's formula gives such a node.
#
#   awk -f bench/provision/waves.awk >waves.zones
BEGIN {
    gib = 1024 ^ 3
    pi = atan2(0, -1)
    printf "{\"format\":\"terrace.zoneinfo\",\"version\":1,\"block\":%d}\n", gib / 8
    for (second = 1; second <= 3600; second++) {
        used = (55 - 45 * cos(2 * pi * second / 1200)) * gib
        printf "{\"at\":%d000000000,\"nodes\":[{\"node\":0,\"memory\":{\"managed\":%.0f,\"free\":%.0f,", \
            second, 128 * gib, 128 * gib - used
        printf "\"watermarks\":{\"min\":47452160,\"low\":184891113,\"high\":322330066}}},{\"node\":1,\"memory\":"
        printf "{\"managed\":%.0f,\"free\":%.0f,\"watermarks\":{\"min\":47452160,\"low\":184891113,\"high\":322330066}}}]}\n", \
            128 * gib, 118 * gib
    }
}
