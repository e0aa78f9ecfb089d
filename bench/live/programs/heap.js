// A heap of records that are looked up, replaced and sorted, and typed arrays beside.
// Usage: node heap.js COUNT
'use strict';
const count = Number(process.argv[2]);
let state = 12345;
const draw = (below) => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return Math.floor((state / 0x80000000) * below);
};
const make = (id) => ({ id, random: draw(1 << 30), text: `text-${draw(1 << 30)}`, list: [id, draw(100)] });
const table = new Map();
for (let i = 0; i < count; i++) table.set(`key-${i}`, make(i));
let sum = 0;
for (let round = 0; round < 2; round++) {
    for (let i = 0; i < 2 * count; i++) {
        const key = draw(i % 10 ? Math.floor(count / 10) : count);
        sum = (sum + table.get(`key-${key}`).random) % 1000000007;
        if (i % 8 === 0) table.set(`key-${key}`, make(key));
    }
    const ordered = [...table.values()].sort((a, b) => a.random - b.random || a.id - b.id);
    let hash = 0;
    for (const entry of ordered) hash = (Math.imul(hash, 31) + entry.text.length + entry.list[1]) >>> 0;
    const words = new Uint32Array(16 * count);
    for (let i = 0; i < words.length; i++) words[i] = Math.imul(i, 2654435761);
    for (let i = 0; i < count; i++) hash = (Math.imul(hash, 31) + words[draw(words.length)]) >>> 0;
    console.log(sum, hash, table.size);
}
