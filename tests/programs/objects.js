// Maps, objects, strings, typed arrays and workers far beyond the budget; prints a digest
// after every step, so that the first wrong one is known.
'use strict';
const crypto = require('crypto');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const numbers = (seed) => () => {
    seed = (seed * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
    return Number(seed >> 33n);
};

function digest(name, parts) {
    const hash = crypto.createHash('sha256');
    for (const part of parts) hash.update(JSON.stringify(part));
    return `${name} ${hash.digest('hex')}`;
}

function steps(seed) {
    const next = numbers(BigInt(seed));
    const lines = [];
    const table = new Map();
    for (let i = 0; i < 60000; i++)
        table.set(`key-${i}-${next()}`, { number: i, random: next(), text: String(next()), list: [i] });
    lines.push(digest('table', table));
    const ordered = [...table.values()].sort((a, b) => a.random - b.random);
    lines.push(digest('ordered', ordered));
    let n = 0;
    for (const key of table.keys()) if (n++ % 3 === 0) table.delete(key);
    for (let i = 0; i < 10000; i++) table.set(`new-${i}`, { text: 'x'.repeat(next() % 900) });
    lines.push(digest('changed', table));
    const bytes = Buffer.alloc(32 << 20);
    for (let i = 0; i < bytes.length; i += 512) bytes.writeUInt32LE(next(), i);
    const copy = Buffer.concat([bytes.subarray(7 << 20), bytes]);
    lines.push(`bytes ${crypto.createHash('sha256').update(copy).digest('hex')}`);
    lines.push(digest('still', ordered));
    return lines;
}

if (isMainThread) {
    const worker = new Worker(__filename, { workerData: 7 });
    worker.on('message', (lines) => {
        console.log(steps(42).join('\n'));
        console.log(lines.join('\n'));
    });
} else {
    parentPort.postMessage(steps(workerData));
}
