-- A table with two indexes in memory, changed, joined and printed.
CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, s TEXT, b BLOB);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 250000)
INSERT INTO t
    SELECT i, (i * 7919) % 100003, printf('%x-%08d-%x', i * 2654435761, i, i * 40503), zeroblob(i % 97)
    FROM c;
CREATE INDEX by_key ON t (k);
CREATE INDEX by_text ON t (s);
UPDATE t SET k = k + 1, s = s || '+' WHERE id % 3 = 0;
DELETE FROM t WHERE id % 11 = 0;
PRAGMA integrity_check;
SELECT count(*), sum(k), sum(length(s)), sum(length(b)), min(s), max(s) FROM t;
SELECT k % 10, count(*), sum(id) FROM t GROUP BY k % 10;
SELECT a.id, b.id FROM t a JOIN t b ON a.k = b.k AND a.id < b.id ORDER BY a.s DESC LIMIT 2000;
SELECT id, k, s FROM t ORDER BY s;
