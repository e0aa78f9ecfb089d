terrace-profile 2
program ./walk two%20words 50%25
machine laptop
clock 3000000000Hz
horizon 1500000000ns
runs 2
places 7
rules 1
region heap len=9437184B seen=2
range offset=0B len=4194304B averted=1000000cycles deviation=100000cycles touched=512
range offset=6291456B len=2097152B averted=10000cycles deviation=1000cycles touched=17
region mmap class=27 order=3 len=134217728B seen=1 instances=3
range offset=0B len=134217728B averted=2000cycles deviation=200cycles touched=512
region data build-id=0badcafe99 len=3145728B seen=2
range offset=0B len=2097152B averted=77cycles deviation=7cycles touched=40
rule huge mmap averted=41534456cycles
