<?php
// PHP's arrays: a table of records, looked up everywhere and around few places, changed, sorted.
// Usage: php arrays.php COUNT
ini_set('memory_limit', '-1');
$count = (int) $argv[1];
$state = 12345;
function draw(int $below): int {
    global $state;
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return intdiv($state * $below, 0x80000000);
}
$table = [];
for ($i = 0; $i < $count; $i++) {
    $table["key-$i"] = ['id' => $i, 'random' => draw(1 << 30), 'text' => "value " . draw(1 << 30)];
}
$sum = 0;
for ($i = 0; $i < $count; $i++) {
    $sum += $table['key-' . draw($i % 10 ? intdiv($count, 10) : $count)]['random'];
}
echo count($table), " $sum\n";
for ($i = 0; $i < $count; $i += 3) {
    $table["key-$i"]['text'] .= '+';
}
$order = array_column($table, 'random', 'id');
asort($order);
$hash = hash_init('md5');
$n = 0;
foreach ($order as $id => $random) {
    if ($n++ % 16 === 0) {
        hash_update($hash, $table["key-$id"]['text']);
    }
}
echo hash_final($hash), "\n";
