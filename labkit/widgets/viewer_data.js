// The trace viewer: a Timeline of any size, drawn on a canvas, zoomed and asked in the browser, with or without a kernel.
// Three parts, which viewer.py joins, in this order, into one module: this one, viewer_painter.js, viewer.js.
//
// First part: pure functions on columns, tested under node (tests/widgets/viewer.test.mjs).
// Boxes are sorted by row, then start. A box is {row, look, x0, x1}: times in microseconds, look an index into `looks`.

/** Columns from the bytes that Python sends, with what makes them quick to search. */
export function decode(about, bytes) {
  const read = (name, kind) => {
    const view = bytes[name], copy = new Uint8Array(view.byteLength);
    copy.set(new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength));
    return new kind(copy.buffer);
  };
  const data = {
    row: read("row", Uint16Array), look: read("look", Uint8Array), label: read("label", Uint32Array),
    x0: read("x0", Float64Array), x1: read("x1", Float64Array), size: read("size", Float64Array),
  };
  const count = data.row.length, rows = about.rows.length;
  data.from = new Uint32Array(rows + 1).fill(count); // row r has boxes from[r] .. from[r + 1] - 1
  for (let i = count - 1; i >= 0; i--) data.from[data.row[i]] = i;
  for (let r = rows - 1; r >= 0; r--) data.from[r] = Math.min(data.from[r], data.from[r + 1]);
  data.reach = new Float64Array(count); // the latest end so far in the row: ends need not be sorted, reaches are
  for (let i = 0; i < count; i++)
    data.reach[i] = i > 0 && data.row[i - 1] === data.row[i] ? Math.max(data.reach[i - 1], data.x1[i]) : data.x1[i];
  return data;
}

/** The first index in lo..hi-1 for which `test` holds; it must stay true from there on. */
export function first(lo, hi, test) {
  while (lo < hi) {
    const middle = (lo + hi) >> 1;
    if (test(middle)) hi = middle; else lo = middle + 1;
  }
  return lo;
}

/** Indices [lo, hi) of a row's boxes that may touch the window start..end. */
export function within(data, row, start, end) {
  const lo = first(data.from[row], data.from[row + 1], i => data.reach[i] > start);
  return [lo, first(lo, data.from[row + 1], i => data.x0[i] >= end)];
}

/** Boxes of this many pixels or more are drawn as they are, with edges on whole pixels. */
export const LARGE = 3;

/**
 * Level of detail of one row in a window of `width` pixels: large boxes as they are ({box, a, b} in pixels); of smaller ones, how
 * much of each pixel each look covers (`cover[look][pixel]`, 0 to 1), so that no share is lost.
 */
export function lod(data, row, start, end, width, numLooks) {
  const [lo, hi] = within(data, row, start, end), scale = width / (end - start);
  const large = [], cover = new Array(numLooks).fill(null);
  for (let i = lo; i < hi; i++) {
    const a = Math.max(0, (data.x0[i] - start) * scale), b = Math.min(width, (data.x1[i] - start) * scale);
    if (b <= a) continue;
    if ((data.x1[i] - data.x0[i]) * scale >= LARGE) { large.push({box: i, a, b}); continue; }
    const mine = cover[data.look[i]] ??= new Float32Array(width);
    for (let pixel = Math.min(width - 1, Math.floor(a)); pixel < Math.min(width, b); pixel++)
      mine[pixel] += Math.min(b, pixel + 1) - Math.max(a, pixel);
  }
  return {large, cover};
}

/** The box of a row at a time, or the nearest one within `slack`; -1 where there is none. The latest begun is on top. */
export function hit(data, row, time, slack = 0) {
  const [lo, hi] = within(data, row, time - slack, time + slack + 1e-9);
  let best = -1, distance = Infinity;
  for (let i = hi - 1; i >= lo; i--) {
    const away = Math.max(0, data.x0[i] - time, time - data.x1[i]);
    if (away < distance && away <= slack) { best = i; distance = away; }
    if (best >= 0 && distance === 0) break;
  }
  return best;
}

/** Microseconds of each look in a window, per row: shares[row][look]. Overlapping boxes of one look count once. */
export function shares(data, numRows, numLooks, start, end) {
  const out = Array.from({length: numRows}, () => new Float64Array(numLooks)), done = new Float64Array(numLooks);
  for (let row = 0; row < numRows; row++) {
    const [lo, hi] = within(data, row, start, end);
    done.fill(start);
    for (let i = lo; i < hi; i++) {
      const look = data.look[i], a = Math.max(data.x0[i], done[look]), b = Math.min(data.x1[i], end);
      if (b > a) { out[row][look] += b - a; done[look] = b; }
    }
  }
  return out;
}

/** The next box after (step 1) or before (step -1) `box` in time that `wanted` takes, on any row; -1 at the end. */
export function seek(data, box, step, wanted) {
  const at = box < 0 ? -Infinity : data.x0[box];
  let best = -1;
  for (let i = 0; i < data.row.length; i++) {
    if (i === box || !wanted(i)) continue;
    const after = step * (data.x0[i] - at) || step * (i - box);
    if (after > 0 && (best < 0 || step * (data.x0[i] - data.x0[best]) < 0)) best = i;
  }
  return best;
}

/** A window zoomed by `factor` around `time`, kept inside `whole` and no narrower than a nanosecond. */
export function zoomed(view, time, factor, whole) {
  const span = Math.min(whole.end - whole.start, Math.max(1e-3, (view.end - view.start) * factor));
  const start = time - (time - view.start) * span / (view.end - view.start);
  return moved({start, end: start + span}, 0, whole);
}

/** A window moved by `by` microseconds, kept inside `whole`. */
export function moved(view, by, whole) {
  const span = view.end - view.start;
  const start = Math.min(Math.max(view.start + by, whole.start), Math.max(whole.start, whole.end - span));
  return {start, end: start + span};
}

/** Round times for an axis: at most `most`, steps of 1, 2 or 5 times a power of ten. */
export function ticks(start, end, most) {
  const raw = (end - start) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(s => s * power).find(s => s >= 0.999 * raw), out = [];
  for (let k = Math.ceil(start / step - 1e-9); k * step <= end + 1e-9 * step; k++) out.push(k * step + 0);
  return out;
}

/** A time in words, as labkit's units.format_us says it. */
export function spoken(us) {
  const [factor, unit] = Math.abs(us) >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 ? [1e3, "ms"] : [1, "us"];
  return `${(us / factor).toLocaleString("en", {maximumSignificantDigits: 6, useGrouping: false})} ${unit}`;
}

/** Chrome trace events, which Perfetto opens: a process per rank, a thread per strip. */
export function chrome(about, data) {
  const events = [];
  about.rows.forEach((row, r) => events.push(
    {name: "process_name", ph: "M", pid: 1000 * row.panel + row.rank, args: {name: `${row.owner} rank ${row.rank}`.trim()}},
    {name: "thread_name", ph: "M", pid: 1000 * row.panel + row.rank, tid: r, args: {name: row.lane}}));
  for (let i = 0; i < data.row.length; i++) {
    const row = about.rows[data.row[i]];
    events.push({name: about.labels[data.label[i]][0], cat: about.looks[data.look[i]].kind, ph: "X",
      pid: 1000 * row.panel + row.rank, tid: data.row[i], ts: data.x0[i], dur: data.x1[i] - data.x0[i],
      args: {bytes: data.size[i]}});
  }
  return {traceEvents: events, displayTimeUnit: "ms"};
}

/** A hatch, {size, path of its strokes}, as a background that CSS repeats. */
export function hatching([size, path]) {
  const drawn = `<svg xmlns="http://www.w3.org/2000/svg" width="${size}" height="${size}">`
    + `<path d="${path}" fill="none" stroke="${INK}" stroke-opacity=".22" stroke-width="1.1"/></svg>`;
  return `url("data:image/svg+xml,${encodeURIComponent(drawn)}")`;
}

