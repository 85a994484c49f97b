// Laws of the viewer's pure half, without a browser: node --test tests/widgets/viewer.test.mjs
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import test from "node:test";

const parts = ["viewer_data.js", "viewer_painter.js", "viewer.js"]
  .map(name => readFileSync(new URL(`../../labkit/widgets/${name}`, import.meta.url), "utf8"));
const source = parts.join("");
const {LARGE, chrome, decode, first, hit, inked, lod, moved, seek, shares, spoken, ticks, within, zoomed} =
  await import(`data:text/javascript,${encodeURIComponent(source)}`);

const ABOUT = {rows: [{rank: 0, owner: "", panel: 0, lane: "compute"}, {rank: 1, owner: "", panel: 0, lane: "comm"}],
  labels: [["a"], ["b"]], looks: [{kind: "F", colour: "#4f9fe3"}, {kind: "send", colour: "#cf8fc2"}]};

function columns(boxes) {
  const sorted = [...boxes].sort((a, b) => a[0] - b[0] || a[2] - b[2]);
  const take = (index, kind) => new DataView(new kind(sorted.map(box => box[index])).buffer);
  return decode(ABOUT, {row: take(0, Uint16Array), look: take(1, Uint8Array), x0: take(2, Float64Array),
    x1: take(3, Float64Array), label: take(4, Uint32Array), size: take(5, Float64Array)});
}

function many(count, chance = 1) {
  let seed = chance;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647, boxes = [];
  for (const row of [0, 1]) for (let k = 0, t = 0; k < count; k++) {
    const gap = random(), length = 10 ** (4 * random() - 2);
    boxes.push([row, k % 2, t + gap, t + gap + length, k % 2, 16]);
    t += gap + length;
  }
  return columns(boxes);
}

const covered = ({large, cover}, data, width, look) =>
  large.filter(({box}) => data.look[box] === look).reduce((sum, {a, b}) => sum + b - a, 0)
  + (cover[look] ? cover[look].reduce((sum, part) => sum + part, 0) : 0);

test("level of detail loses no time: shares in pixels are shares in microseconds, in every window", () => {
  const data = many(5000), end = data.x1[data.from[1] - 1];
  for (const [from, to] of [[0, end], [0.1 * end, 0.2 * end], [0.5 * end, 0.5 * end + 3]]) {
    const exact = shares(data, 2, 2, from, to);
    for (const row of [0, 1]) for (const look of [0, 1]) {
      const pixels = covered(lod(data, row, from, to, 800, 2), data, 800, look);
      assert.ok(Math.abs(pixels / 800 - exact[row][look] / (to - from)) < 1e-3, `${from} ${row} ${look}`);
    }
  }
});

test("a large box is drawn as it is, a smaller one never is", () => {
  const data = many(2000), {large, cover} = lod(data, 0, 0, 400, 800, 2);
  assert.ok(large.length && cover.some(Boolean));
  for (const {box} of large) assert.ok((data.x1[box] - data.x0[box]) * 2 >= LARGE);
  for (const mine of cover.filter(Boolean)) assert.ok(Math.max(...mine) <= 1 + 1e-6);
});

test("what is drawn does not grow with the number of boxes", () => {
  const data = many(100000), end = data.x1[data.from[1] - 1];
  assert.ok(lod(data, 0, 0, end, 800, 2).large.length <= 800 / LARGE + 1);
});

test("hit finds the box under the pointer, the nearest within the slack, and nothing between", () => {
  const data = columns([[0, 0, 10, 20, 0, 0], [0, 1, 30, 40, 1, 0], [1, 0, 0, 5, 0, 0]]);
  assert.equal(hit(data, 0, 15), 0);
  assert.equal(hit(data, 0, 30), 1);
  assert.equal(hit(data, 0, 25), -1);
  assert.equal(hit(data, 0, 28, 3), 1);
  assert.equal(hit(data, 0, 22, 3), 0);
  assert.equal(hit(data, 1, 15, 3), -1);
});

test("hit agrees with a look at every box", () => {
  const data = many(800, 7), end = data.x1[data.from[1] - 1];
  for (let k = 0; k < 500; k++) {
    const time = (k + 0.5) * end / 500, found = hit(data, 1, time);
    const all = [...data.row.keys()].filter(i => data.row[i] === 1 && data.x0[i] <= time && time <= data.x1[i]);
    assert.equal(found, all.length ? all.at(-1) : -1);
  }
});

test("a long box that began early is seen under later short ones", () => {
  const data = columns([[0, 0, 0, 100, 0, 0], [0, 1, 10, 11, 1, 0], [0, 1, 20, 21, 1, 0]]);
  assert.deepEqual(within(data, 0, 50, 60), [0, 3]);
  assert.equal(hit(data, 0, 50), 0);
  assert.equal(lod(data, 0, 50, 60, 100, 2).large.length, 1);
});

test("overlapping boxes of one look count once", () => {
  const data = columns([[0, 0, 0, 10, 0, 0], [0, 0, 5, 12, 0, 0], [0, 1, 4, 6, 1, 0]]);
  const [[forward, send]] = shares(data, 2, 2, 0, 20);
  assert.equal(forward, 12);
  assert.equal(send, 2);
});

test("next and previous walk through time, over all rows, and come back the same way", () => {
  const data = many(50, 3), wanted = i => data.look[i] === 1, path = [];
  for (let box = seek(data, -1, 1, wanted); box >= 0; box = seek(data, box, 1, wanted)) path.push(box);
  assert.equal(path.length, [...data.look].filter(look => look === 1).length);
  for (let k = 1; k < path.length; k++) {
    assert.ok(data.x0[path[k]] >= data.x0[path[k - 1]]);
    assert.equal(seek(data, path[k], -1, wanted), path[k - 1]);
  }
});

test("zooming keeps the time under the pointer, and no window leaves the whole", () => {
  const whole = {start: 0, end: 1000}, near = zoomed(whole, 300, 0.1, whole);
  assert.ok(Math.abs((300 - near.start) / (near.end - near.start) - 0.3) < 1e-9);
  assert.deepEqual(zoomed(near, 300, 1e9, whole), whole);
  assert.deepEqual(moved({start: 900, end: 950}, 500, whole), {start: 950, end: 1000});
  assert.deepEqual(moved({start: 100, end: 150}, -500, whole), {start: 0, end: 50});
  const least = zoomed(near, 300, 1e-12, whole);
  assert.ok(least.end - least.start > 0.99e-3);
});

test("round ticks, spoken times, colours as pixels", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.ok(ticks(123.4, 987.6, 8).length <= 9);
  assert.deepEqual([spoken(12.5), spoken(1500), spoken(2.5e6)], ["12.5 us", "1.5 ms", "2.5 s"]);
  assert.equal(first(0, 10, i => i >= 7), 7);
  const bytes = new Uint8Array(new Uint32Array([inked([{colour: "#010203"}])[0].word32]).buffer);
  assert.deepEqual([...bytes], [1, 2, 3, 255]);
});

test("the chrome trace has every box once", () => {
  const data = many(20), events = chrome(ABOUT, data).traceEvents.filter(event => event.ph === "X");
  assert.equal(events.length, 40);
  assert.ok(events.every((event, i) => event.ts === data.x0[i] && event.dur === data.x1[i] - data.x0[i]));
});
