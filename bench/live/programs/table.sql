-- A table with an index in memory: filled, looked up at random and around few
-- places, joined, sorted. `@rows` says how large.
CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, name TEXT, note TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < @rows)
INSERT INTO t
    SELECT i, (i * 7919) % @rows, printf('user-%08d', i * 2654435761 % 100000000),
        printf('the memory of a machine is not all equally fast: %x and %d', i * 40503, i)
    FROM c;
CREATE INDEX by_key ON t (k);
-- Everywhere.
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < @rows / 3)
SELECT count(*), sum(length(name)), sum(t.id) FROM c JOIN t ON t.k = (c.i * 104729) % @rows;
-- Nine in ten within a tenth of the keys.
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < @rows / 2)
SELECT count(*), sum(length(note)), sum(t.id)
    FROM c JOIN t ON t.k = (c.i * 104729) % CASE WHEN c.i % 10 THEN @rows / 10 ELSE @rows END;
UPDATE t SET note = note || '+' WHERE id % 7 = 0;
SELECT k % 10, count(*), max(note) FROM t GROUP BY k % 10;
SELECT count(*), sum(length(note)) FROM t;
