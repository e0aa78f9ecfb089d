# Hashes of arrays, strings that grow, and sorting, in Perl.
use strict;
use warnings;

my $state = 42;
sub next_number { $state = ($state * 1103515245 + 12345) % 2147483648; return $state; }

my %table;
for my $i (1 .. 120_000) {
    my $key = "k" . next_number();
    push @{ $table{$key} }, $i, "value-" . next_number();
}
my $sum = 0;
for my $key (sort keys %table) {
    for my $entry (@{ $table{$key} }) {
        my $text = "$key:$entry";
        $sum = ($sum * 31 + length($text) + ord(substr($text, -1))) % 1_000_000_007;
    }
}
print "table $sum ", scalar(keys %table), "\n";

my $long = "";
$long .= chr(next_number() % 256) x (next_number() % 4000) for 1 .. 8_000;
print "long ", length($long), " ", unpack("%32C*", $long), "\n";

my @sorted = sort { $a->[1] <=> $b->[1] or $a->[0] <=> $b->[0] } map { [ $_, next_number() % 1000 ] } 1 .. 150_000;
$sum = 0;
$sum = ($sum * 33 + $_->[0] * $_->[1]) % 1_000_000_007 for @sorted;
print "sorted $sum\n";
delete $table{$_} for (sort keys %table)[0 .. 50_000];
print "left ", scalar(keys %table), "\n";
