terrace-profile 2
program 
machine cbmm
clock 2200000000Hz
horizon 10000000000ns
runs 1
places 0
rules 7
rule huge mmap averted=1200000cycles addr>139633681760256 addr<139638245163008
rule huge mmap averted=350000cycles addr>139638245163007 addr<139640124211200
rule huge mmap averted=9000cycles
rule eager heap section_off<192512
rule huge heap averted=800000cycles section_off<2097152
rule huge heap averted=41000cycles
rule huge data averted=77cycles len=8192 prot=3
