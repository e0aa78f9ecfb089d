#!/usr/bin/env bash
# Records real programs that stand for programs of SPEC CPU2006 in Dapper's Figures 2, 3 and 10 to
# 12, so that they can be replayed in place of the algorithms that come with Terrace.
#
#   bench/dapper/record.sh TERRACE DIRECTORY
#
#   LIMIT=N       record so many accesses of each program; it goes on after them, unrecorded
#   ONLY="a b"    record these, and keep what the directory has of others
#
# Nine are today's versions of the free programs that the suite's were made of. LEMON's network
# simplex (for mcf), GLPK's simplex (soplex) and Meep (GemsFDTD) do the same by the same method.
# Inputs are made here, and small. What is not installed is named and left out
# (scripts/setup.sh bench-dapper installs all).
set -euo pipefail

terrace=$(realpath "$1")
directory=$2
here=$(cd "$(dirname "$0")" && pwd)
limit=${LIMIT:-100000000}
export PATH=$PATH:/usr/games LC_ALL=C OMP_NUM_THREADS=1
mkdir -p "$directory"
directory=$(realpath "$directory")
cd "$directory"
options=()

# recorded PROGRAM COMMAND...: COMMAND stands for the suite's PROGRAM.
recorded() {
    local name=$1 program=$2
    shift
    if ! command -v "$program" >/dev/null; then
        echo "record.sh: NOT RECORDED: $name: $program is not installed" >&2
        return 0
    fi
    case " ${ONLY:-$name} " in
    *" $name "*) ;;
    *)
        [ ! -e "$name.trace" ] || options+=(--trace "$name=$directory/$name.trace")
        return 0
        ;;
    esac
    echo "$name: $*" >&2
    rm -f "$name.trace"
    # What the program has to say is not asked for; how it ends is.
    if ! "$terrace" record --limit "$limit" -o "$name.trace" -- "$@" \
        </dev/null >"$name.out" 2>"$name.err"; then
        tail -n 5 "$name.err" >&2
        echo "record.sh: $name failed" >&2
        exit 1
    fi
    grep -E 'accesses|trace' "$name.err" >&2
    options+=(--trace "$name=$directory/$name.trace")
}

# Text: the sources of this repository.
find "$here/../../crates" -name '*.rs' | sort | xargs cat >text

cat >words.pl <<'PERL'
my (%count, %lines);
my $line = 0;
while (<>) {
    $line++;
    for my $word (split /\W+/) { $count{$word}++; push @{$lines{$word}}, $line; }
}
for my $word (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count) {
    print "$word $count{$word} ", scalar(@{$lines{$word}}), "\n";
}
PERL
head -c 1200000 text >perl.text
recorded perlbench perl words.pl perl.text

head -c 3000000 text >bzip2.text
recorded bzip2 bzip2 -9 -k -c bzip2.text

# Functions with loops, branches and calls of each other.
awk 'BEGIN { srand(1); for (f = 0; f < 60; f++) {
    printf "int f%d(int *a, int n) {\n  int s = %d;\n  for (int i = 0; i < n; i++) {\n", f, f
    for (l = 0; l < 30; l++)
        printf "    if (a[(i * %d + %d) %% n] > s) s += a[i] * %d; else a[i] ^= s >> %d;\n", \
            1 + rand() * 90, rand() * 50, rand() * 99, 1 + rand() * 7
    if (f > 0) printf "    if (s == i) s += f%d(a, n - 1);\n", int(rand() * f)
    print "  }\n  return s;\n}" } }' >functions.c
recorded gcc "$(gcc -print-prog-name=cc1)" -quiet -O2 functions.c -o functions.s

# A transport from 800 places to 800, by arcs at random, with a way round for all that is left. It
# takes long to read.
awk 'BEGIN { srand(2); n = 4000; m = 150000; print "p min", n, m + n - 1
    for (i = 1; i <= 800; i++) { print "n", i, 50; print "n", n + 1 - i, -50 }
    for (i = 0; i < m; i++) {
        a = 1 + int(rand() * n); b = 1 + int(rand() * (n - 1)); if (b >= a) b++
        print "a", a, b, 0, 1 + int(rand() * 60), 1 + int(rand() * 100) }
    for (i = 1; i < n; i++) print "a", i, i + 1, 0, 40000, 5000 }' >flow.min
limit=$((limit * 4)) recorded mcf dimacs-solver flow.min /dev/null

printf 'boardsize 13\n' >go.gtp
for _ in 1 2 3 4; do printf 'genmove black\ngenmove white\n' >>go.gtp; done
printf 'quit\n' >>go.gtp
recorded gobmk gnugo --mode gtp --gtp-input go.gtp --seed 1 --level 5

# Related sequences, and a thousand others.
awk 'BEGIN { srand(3); A = "ACDEFGHIKLMNPQRSTVWY"
    for (i = 0; i < 200; i++) base[i] = substr(A, 1 + int(rand() * 20), 1)
    print "# STOCKHOLM 1.0\n"
    for (s = 0; s < 10; s++) { t = ""
        for (i = 0; i < 200; i++) t = t (rand() < 0.7 ? base[i] : substr(A, 1 + int(rand() * 20), 1))
        printf "seq%d %s\n", s, t }
    print "//" }' >family.sto
awk 'BEGIN { srand(4); A = "ACDEFGHIKLMNPQRSTVWY"
    for (s = 0; s < 1000; s++) { t = ""
        for (i = 0; i < 350; i++) t = t substr(A, 1 + int(rand() * 20), 1)
        printf ">other%d\n%s\n", s, t } }' >others.fa
if command -v hmmbuild >/dev/null; then hmmbuild family.hmm family.sto >/dev/null; fi
recorded hmmer hmmsearch --max --cpu 0 family.hmm others.fa

if [ -e /usr/include/quantum.h ]; then
    # The library's loops are in parallel, where there is more than one thread.
    cc -O2 -fopenmp -o register "$here/register.c" -lquantum
fi
recorded libquantum "$directory/register" 19

awk 'BEGIN { srand(5); print "<?xml version=\"1.0\"?>\n<shop>"
    for (i = 0; i < 3000; i++)
        printf "<item id=\"%d\"><name>thing %d</name><price>%.2f</price><of>%d</of></item>\n", \
            i, rand() * 1e6, rand() * 100, rand() * 40
    print "</shop>" }' >shop.xml
cat >shop.xsl <<'XSL'
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:key name="of" match="item" use="of"/>
<xsl:template match="/shop"><table><xsl:for-each select="item">
<xsl:sort select="name"/><xsl:sort select="price" data-type="number"/>
<tr><td><xsl:value-of select="name"/></td><td><xsl:value-of select="price * 2"/></td>
<td><xsl:value-of select="count(key('of', of)[price &gt; current()/price])"/></td></tr>
</xsl:for-each></table></xsl:template>
</xsl:stylesheet>
XSL
recorded xalancbmk Xalan -o /dev/null shop.xml shop.xsl

# A beam of cubes, held at one end and pulled at the other.
awk 'BEGIN { X = 60; Y = 8; Z = 8; print "*NODE, NSET=ALL"
    for (z = 0; z <= Z; z++) for (y = 0; y <= Y; y++) for (x = 0; x <= X; x++)
        printf "%d, %d, %d, %d\n", n(x, y, z), x, y, z
    print "*ELEMENT, TYPE=C3D8, ELSET=BEAM"
    for (z = 0; z < Z; z++) for (y = 0; y < Y; y++) for (x = 0; x < X; x++)
        printf "%d, %d, %d, %d, %d, %d, %d, %d, %d\n", ++e, n(x, y, z), n(x + 1, y, z), \
            n(x + 1, y + 1, z), n(x, y + 1, z), n(x, y, z + 1), n(x + 1, y, z + 1), \
            n(x + 1, y + 1, z + 1), n(x, y + 1, z + 1)
    print "*MATERIAL, NAME=STEEL\n*ELASTIC\n210000., .3\n*SOLID SECTION, ELSET=BEAM, MATERIAL=STEEL"
    print "*BOUNDARY"
    for (z = 0; z <= Z; z++) for (y = 0; y <= Y; y++) printf "%d, 1, 3\n", n(0, y, z)
    print "*STEP\n*STATIC\n*CLOAD"
    for (z = 0; z <= Z; z++) printf "%d, 3, -1.\n", n(X, 0, z)
    print "*NODE PRINT, NSET=ALL, TOTALS=ONLY\nRF\n*END STEP" }
    function n(x, y, z) { return 1 + x + (X + 1) * (y + (Y + 1) * z) }' >beam.inp
recorded calculix ccx -i beam

# 60 factories, 200 shops.
awk 'BEGIN { srand(6); print "Minimize\n cost:"
    for (i = 0; i < 60; i++) for (j = 0; j < 200; j++) printf " + %d x%d_%d\n", 1 + rand() * 99, i, j
    print "Subject To"
    for (i = 0; i < 60; i++) { printf " f%d:", i
        for (j = 0; j < 200; j++) printf " + x%d_%d%s", i, j, j % 10 == 9 ? "\n" : ""
        print " <= 100" }
    for (j = 0; j < 200; j++) { printf " s%d:", j
        for (i = 0; i < 60; i++) printf " + x%d_%d%s", i, j, i % 10 == 9 ? "\n" : ""
        print " >= 20" }
    print "End" }' >shops.lp
recorded soplex glpsol --lp shops.lp

cat >scene.pov <<'POV'
camera { location <0, 6, -14> look_at <0, 1, 0> }
light_source { <10, 20, -10> rgb 1 }
light_source { <-12, 9, -8> rgb 0.5 }
plane { y, 0 pigment { checker rgb 1, rgb 0.2 } finish { reflection 0.2 } }
#declare S = seed(7);
#declare I = 0;
#while (I < 400)
  sphere { <rand(S) * 20 - 10, rand(S) * 6, rand(S) * 20 - 6>, 0.2 + rand(S) * 0.4
    pigment { rgb <rand(S), rand(S), rand(S)> } finish { reflection 0.3 phong 1 } }
  #declare I = I + 1;
#end
POV
recorded povray povray +Iscene.pov +W120 +H90 +WT1 -D -F -GA

cat >guide.ctl <<'CTL'
(set! geometry-lattice (make lattice (size 16 16 no-size)))
(set! geometry (list (make block (center 0 0) (size infinity 1 infinity)
  (material (make medium (epsilon 12))))))
(set! sources (list (make source (src (make continuous-src (frequency 0.15)))
  (component Ez) (center -7 0))))
(set! pml-layers (list (make pml (thickness 1.0))))
(set! resolution 20)
(run-until 20)
CTL
recorded GemsFDTD meep guide.ctl

[ "${#options[@]}" -gt 0 ] || { echo "record.sh: nothing was recorded" >&2; exit 1; }
echo "$terrace reproduce dapper --only memory ${options[*]}" | tee command
