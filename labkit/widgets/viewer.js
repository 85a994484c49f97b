// The trace viewer: a Timeline of any size, drawn on a canvas, zoomed and asked in the browser, with or without a kernel.
//
// First half: pure functions on columns, tested under node (tests/viewer.test.mjs). Second half: the widget (anywidget).
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

// ---------------------------------------------------------------------------------------------------- the widget

const LEFT = 64, RIGHT = 8, AXIS = 26, TOP = 6, INK = "#10161f";
const STYLE = `
.labkit-viewer{font:12px system-ui,-apple-system,'Segoe UI','Noto Sans','PingFang SC','Noto Sans CJK SC',sans-serif;color:inherit}
.labkit-viewer canvas{display:block;width:100%;cursor:crosshair;outline-offset:-2px}
.labkit-viewer header{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline;margin:4px 0}
.labkit-viewer header b{font-size:15px}
.labkit-viewer header span{opacity:.8}
.labkit-viewer .tools{display:flex;flex-wrap:wrap;gap:4px;align-items:center;margin:4px 0}
.labkit-viewer button,.labkit-viewer input{font:inherit;color:inherit;background:transparent;border:1px solid currentColor;border-radius:4px;padding:2px 7px}
.labkit-viewer .legend>span{display:inline-flex;gap:6px;align-items:center;margin:2px 14px 2px 0;white-space:nowrap}
.labkit-viewer .swatch{min-width:20px;color:${INK};font-size:11px;line-height:15px;text-align:center}
.labkit-viewer details{margin:8px 0;font-size:12px}
.labkit-viewer table{border-collapse:collapse;margin-top:6px;font-variant-numeric:tabular-nums}
.labkit-viewer td,.labkit-viewer th{padding:1px 10px 1px 0;text-align:right;border-top:1px solid #8886}
.labkit-viewer .said{min-height:1.5em;margin:4px 0}`;

class Viewer {
  constructor(element, about, data, tell = () => {}) {
    Object.assign(this, {about, data, tell, words: about.words});
    this.whole = {start: about.start_us, end: Math.max(about.end_us, about.start_us + 1e-3)};
    this.view = {...this.whole};
    Object.assign(this, {focus: -1, hover: -1, brush: null, query: "", matches: null, alike: new Set()});
    this.build(element);
    this.listen();
    this.tellBox(-1);
    this.resize();
  }

  build(element) {
    const {about, words} = this, make = (tag, parent, set = {}) => {
      const child = Object.assign(document.createElement(tag), set);
      parent.append(child);
      return child;
    };
    this.box = make("section", element, {className: "labkit-viewer"});
    make("style", this.box, {textContent: STYLE});
    const head = make("header", this.box);
    make("b", head, {textContent: about.heading});
    for (const [name, value] of about.numbers) make("span", head, {textContent: `${name} ${value}`});
    make("span", head, {textContent: about.badge});
    const tools = make("div", this.box, {className: "tools"});
    const button = (text, label, act) => {
      const made = make("button", tools, {textContent: text, title: label, type: "button", onclick: () => { act(); this.paint(); }});
      made.setAttribute("aria-label", label);
    };
    button("+", words.in, () => this.zoom(0.5));
    button("−", words.out, () => this.zoom(2));
    button("0", words.all, () => { this.view = {...this.whole}; });
    button("←", words.left, () => this.pan(-0.25));
    button("→", words.right, () => this.pan(0.25));
    button("p", words.previous, () => this.step(-1));
    button("n", words.next, () => this.step(1));
    button(words.zoom, words.zoom, () => { if (this.brush) this.view = moved({...this.brush}, 0, this.whole); });
    this.search = make("input", tools, {type: "search", placeholder: words.search, size: 14});
    this.search.setAttribute("aria-label", words.search);
    button("Perfetto ↓", words.perfetto, () => this.download());
    this.canvas = make("canvas", this.box, {tabIndex: 0});
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", about.title);
    this.canvas.setAttribute("aria-description", `${about.summary} ${words.keys}`);
    this.said = make("div", this.box, {className: "said"});
    this.said.setAttribute("aria-live", "polite");
    const legend = make("div", this.box, {className: "legend"}), seen = new Set(this.data.look);
    about.looks.forEach((look, index) => {
      if (!seen.has(index) || look.chunk) return;
      const item = make("span", legend);
      const swatch = make("span", item, {className: "swatch", textContent: look.letter});
      swatch.style.background = look.hatch ? `${hatching(look.hatch)} ${look.colour}` : look.colour;
      item.append(look.word);
    });
    this.details = make("details", this.box);
    make("summary", this.details, {textContent: words.table});
    this.table = make("div", this.details);
    this.tabulate();
  }

  listen() {
    const c = this.canvas, time = event => this.time(event.clientX - c.getBoundingClientRect().left);
    let from = null, panning = null;
    c.onpointerdown = event => {
      c.setPointerCapture(event.pointerId);
      c.focus({preventScroll: true});
      if (event.shiftKey || event.button === 1) panning = {x: event.clientX, view: this.view};
      else from = time(event);
    };
    c.onpointermove = event => {
      if (panning) this.view = moved(panning.view, (panning.x - event.clientX) / this.scale, this.whole);
      else if (from !== null && Math.abs(time(event) - from) * this.scale > 3) {
        const to = time(event);
        this.brush = {start: Math.max(this.whole.start, Math.min(from, to)), end: Math.min(this.whole.end, Math.max(from, to))};
      } else if (from === null) {
        const found = this.at(event);
        if (found === this.hover) return;
        this.hover = found;
        this.tellBox(found < 0 ? this.focus : found);
      }
      this.paint();
    };
    c.onpointerup = event => {
      if (!panning && from !== null) {
        if (this.brush && Math.abs(time(event) - from) * this.scale > 3) this.select();
        else { this.focus = this.at(event); this.brush = null; this.select(); this.tellBox(this.focus); }
      }
      from = panning = null;
      this.paint();
    };
    c.onpointerleave = () => { this.hover = -1; this.paint(); };
    c.ondblclick = () => { if (this.focus >= 0) this.fit(this.focus); this.paint(); };
    c.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== c) return; // the page scrolls
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
        this.view = moved(this.view, (event.deltaX || event.deltaY) / this.scale, this.whole);
      else this.view = zoomed(this.view, time(event), Math.exp(0.002 * event.deltaY), this.whole);
      this.paint();
    }, {passive: false});
    const keys = {"+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => { this.view = {...this.whole}; }, ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
      n: () => this.step(1), p: () => this.step(-1), Enter: () => this.focus >= 0 && this.fit(this.focus),
      Escape: () => { this.brush = null; this.focus = -1; this.select(); this.tellBox(-1); }};
    c.onkeydown = event => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
      this.paint();
    };
    this.search.oninput = () => { this.find(this.search.value); this.paint(); };
    this.search.onkeydown = event => {
      event.stopPropagation();
      if (event.key === "Enter") { this.step(event.shiftKey ? -1 : 1); this.paint(); }
    };
    this.watching = [new ResizeObserver(() => this.resize()), new MutationObserver(() => this.paint())];
    this.watching[0].observe(this.box);
    for (const node of [document.documentElement, document.body])
      this.watching[1].observe(node, {attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-theme"]});
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.onchange = () => this.paint();
  }

  stop() {
    for (const each of this.watching) each.disconnect();
    this.dark.onchange = null;
  }

  get scale() { return this.width / (this.view.end - this.view.start); }
  time(x) { return this.view.start + (x - LEFT) / this.scale; }
  x(time) { return LEFT + (time - this.view.start) * this.scale; }
  zoom(factor) {
    const focus = this.focus >= 0 ? (this.data.x0[this.focus] + this.data.x1[this.focus]) / 2 : NaN;
    const seen = focus > this.view.start && focus < this.view.end;
    this.view = zoomed(this.view, seen ? focus : (this.view.start + this.view.end) / 2, factor, this.whole);
  }
  pan(share) { this.view = moved(this.view, share * (this.view.end - this.view.start), this.whole); }
  fit(box) {
    const {x0, x1} = this.data, middle = (x0[box] + x1[box]) / 2, span = Math.max(4 * (x1[box] - x0[box]), 1e-2);
    this.view = moved({start: middle - span / 2, end: middle + span / 2}, 0, this.whole);
  }

  at(event) {
    const place = this.canvas.getBoundingClientRect(), x = event.clientX - place.left, y = event.clientY - place.top;
    const row = this.about.rows.findIndex(r => y >= TOP + r.top_px && y < TOP + r.top_px + Math.max(r.height_px, 3));
    return row < 0 || x < LEFT ? -1 : hit(this.data, row, this.time(x), 2 / this.scale);
  }

  find(text) {
    this.query = text.trim().toLowerCase();
    const found = this.about.labels.map(([long]) => long.toLowerCase().includes(this.query));
    this.matches = this.query ? found : null;
    if (!this.matches) return this.tellBox(this.focus);
    const count = this.data.label.reduce((sum, label) => sum + found[label], 0);
    this.said.textContent = this.words.found.replace("{}", count);
  }

  step(direction) {
    const {data} = this, kind = this.focus >= 0 ? this.about.looks[data.look[this.focus]].kind : null;
    const wanted = this.matches ? i => this.matches[data.label[i]]
      : i => kind === null || this.about.looks[data.look[i]].kind === kind;
    const next = seek(data, this.focus, direction, wanted);
    if (next < 0) return;
    this.focus = next;
    const middle = (data.x0[next] + data.x1[next]) / 2;
    if (middle < this.view.start || middle > this.view.end)
      this.view = moved(this.view, middle - (this.view.start + this.view.end) / 2, this.whole);
    this.tellBox(next);
  }

  tellBox(box) {
    const {about, data, words} = this;
    this.alike = new Set();
    if (box < 0) { this.said.textContent = words.keys; return; }
    const row = about.rows[data.row[box]], look = about.looks[data.look[box]], label = about.labels[data.label[box]][0];
    const size = data.size[box] ? `, ${data.size[box].toLocaleString("en")} ${words.bytes}` : "";
    const length = data.x1[box] - data.x0[box];
    let text = `${row.owner} rank ${row.rank}: ${label} (${look.word}), ${spoken(data.x0[box])} … ${spoken(data.x1[box])}, `
      + `${spoken(length)}${size}`;
    const other = this.twin(box);
    if (other >= 0) {
      this.alike.add(other);
      text += `. ${about.rows[data.row[other]].owner}: ${spoken(data.x1[other] - data.x0[other])}`;
    }
    this.said.textContent = text.trim();
  }

  /** The same action of the same rank in the other panel: its n-th of that label there, as this one is here. */
  twin(box) {
    const {about, data} = this, mine = about.rows[data.row[box]];
    const same = (i, panel) => { const row = about.rows[data.row[i]];
      return data.label[i] === data.label[box] && row.rank === mine.rank && row.panel === panel; };
    const others = [...new Set(about.rows.map(row => row.panel))].filter(panel => panel !== mine.panel);
    if (!others.length) return -1;
    let number = 0;
    for (let i = 0; i < box; i++) number += same(i, mine.panel);
    for (let i = 0; i < data.row.length; i++) if (same(i, others[0]) && number-- === 0) return i;
    return -1;
  }

  select() {
    this.tell(this.brush);
    this.details.open = Boolean(this.brush);
    this.tabulate();
  }

  /** The shares of each kind in what is selected, or in all. */
  tabulate() {
    const {about, data} = this, {start, end} = this.brush ?? this.whole, total = end - start, lines = new Map();
    const parts = shares(data, about.rows.length, about.looks.length, start, end);
    const kinds = [...new Set(about.looks.map(look => look.kind))];
    this.table.textContent = "";
    about.rows.forEach((row, r) => {
      const key = `${row.owner} rank ${row.rank}`.trim(), line = lines.get(key) ?? lines.set(key, {}).get(key);
      about.looks.forEach((look, l) => { line[look.kind] = (line[look.kind] ?? 0) + parts[r][l]; });
    });
    const used = kinds.filter(kind => [...lines.values()].some(line => line[kind] > 0));
    const table = document.createElement("table"), cell = (row, tag, text) =>
      row.append(Object.assign(document.createElement(tag), {textContent: text}));
    table.createCaption().textContent = `${spoken(start)} … ${spoken(end)}: ${spoken(total)}`;
    const head = table.insertRow();
    for (const text of ["", ...used.map(kind => about.looks.find(look => look.kind === kind).word)]) cell(head, "th", text);
    for (const [name, line] of lines) {
      const row = table.insertRow();
      cell(row, "th", name);
      for (const kind of used) cell(row, "td", `${(100 * line[kind] / total).toFixed(1)} %`);
    }
    this.table.append(table);
  }

  download() {
    const file = new Blob([JSON.stringify(chrome(this.about, this.data))], {type: "application/json"});
    const link = Object.assign(document.createElement("a"), {href: URL.createObjectURL(file), download: "timeline.json"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    this.said.textContent = this.words.perfetto;
  }

  resize() {
    const width = Math.max(320, Math.floor(this.box.clientWidth || 900)), ratio = window.devicePixelRatio || 1;
    Object.assign(this, {ratio, tiles: null});
    this.width = width - LEFT - RIGHT;
    this.height = TOP + this.about.height_px + AXIS;
    this.canvas.style.height = `${this.height}px`;
    Object.assign(this.canvas, {width: Math.round(width * ratio), height: Math.round(this.height * ratio)});
    this.draw();
  }

  paint() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw(); });
  }

  draw() {
    const began = performance.now(), g = this.canvas.getContext("2d"), {about, view} = this;
    const ink = getComputedStyle(this.box).color, width = Math.max(1, Math.round(this.width * this.ratio));
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const texts = [];
    about.rows.forEach((row, r) => this.strip(g, row, lod(this.data, r, view.start, view.end, width, about.looks.length), texts));
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.fillStyle = INK;
    g.textAlign = "center";
    for (const [text, x, y] of texts) g.fillText(text, x, y);
    this.frame(g, ink);
    this.drawn_ms = performance.now() - began;
    this.canvas.dataset.ms = this.drawn_ms.toFixed(2);
  }

  /** One row in device pixels: small boxes as columns of pixels, every look with its share; large ones as they are. */
  strip(g, row, {large, cover}, texts) {
    const {about, data, ratio} = this, left = Math.round(LEFT * ratio), top = Math.round((TOP + row.top_px) * ratio);
    const height = Math.max(1, Math.round(row.height_px * ratio)), width = Math.round(this.width * ratio);
    const used = cover.map((mine, look) => [look, mine]).filter(([, mine]) => mine);
    if (used.length) {
      const image = this.pixels(width, height), owed = new Float64Array(about.looks.length);
      for (let x = 0; x < width; x++) {
        let y = 0;
        for (const [look, mine] of used) {
          owed[look] += mine[x] * height;
          const rows = Math.min(height - y, Math.floor(owed[look] + 0.5));
          owed[look] -= rows;
          for (const end = y + rows; y < end; y++) image.words[y * width + x] = about.looks[look].word32;
        }
      }
      const sheet = this.sheet(width, height);
      sheet.getContext("2d").putImageData(image.data, 0, 0);
      g.drawImage(sheet, 0, 0, width, height, left, top, width, height);
    }
    const dim = this.matches;
    for (const {box, a: from, b: to} of large) {
      const look = about.looks[data.look[box]], a = Math.round(from), b = Math.round(to);
      g.globalAlpha = dim && !dim[data.label[box]] ? 0.25 : 1;
      g.fillStyle = look.colour;
      g.fillRect(left + a, top, b - a, height);
      if (look.hatch && b - a > 5 * ratio) {
        g.fillStyle = this.tile(look);
        g.fillRect(left + a, top, b - a, height);
      }
      if (g.globalAlpha === 1 && b - a > 14 * ratio && row.height_px >= 13) {
        const fits = about.labels[data.label[box]].find(text => text && 6.7 * text.length + 4 <= (b - a) / ratio);
        if (fits) texts.push([fits, (left + (a + b) / 2) / ratio, TOP + row.top_px + row.height_px / 2]);
      }
      if (b - a > 3 * ratio) {
        g.fillStyle = INK;
        g.globalAlpha *= 0.35;
        g.fillRect(left + b - 1, top, 1, height);
      }
    }
    g.globalAlpha = 1;
  }

  /** A hatch as the SVG form has it: a pattern of tiles, each {size, path of its strokes}. */
  tile({hatch: [size, path]}) {
    this.tiles ??= new Map();
    if (!this.tiles.has(path)) {
      const sheet = new OffscreenCanvas(Math.round(size * this.ratio), Math.round(size * this.ratio)), g = sheet.getContext("2d");
      g.scale(sheet.width / size, sheet.width / size);
      Object.assign(g, {strokeStyle: INK, globalAlpha: 0.22, lineWidth: 1.1});
      g.stroke(new Path2D(path));
      this.tiles.set(path, g.createPattern(sheet, "repeat"));
    }
    return this.tiles.get(path);
  }

  pixels(width, height) {
    if (this.image?.data.width !== width || this.image.data.height !== height) {
      const data = new ImageData(width, height);
      this.image = {data, words: new Uint32Array(data.data.buffer)};
    }
    this.image.words.fill(0);
    return this.image;
  }

  sheet(width, height) {
    this.paper ??= document.createElement("canvas");
    if (this.paper.width !== width || this.paper.height !== height) Object.assign(this.paper, {width, height});
    return this.paper;
  }

  frame(g, ink) {
    const {about, data, view} = this;
    g.fillStyle = g.strokeStyle = ink;
    g.textAlign = "right";
    for (const row of about.rows) if (row.name) g.fillText(row.name, LEFT - 6, TOP + row.top_px + row.height_px / 2);
    g.textAlign = "left";
    for (const head of about.headings) g.fillText(head.text, LEFT, TOP + head.bottom_px - 4);
    const bottom = TOP + about.height_px + 4, unit = view.end >= 1e6 ? [1e6, "s"] : view.end >= 1e3 ? [1e3, "ms"] : [1, "us"];
    g.globalAlpha = 0.5;
    g.fillRect(LEFT, bottom, this.width, 1);
    g.globalAlpha = 1;
    const marks = ticks(view.start / unit[0], view.end / unit[0], Math.max(2, Math.floor(this.width / 90)));
    const digits = Math.max(0, Math.ceil(-Math.log10((marks[1] ?? 2) - (marks[0] ?? 1)) - 1e-9));
    g.textAlign = "center";
    for (const mark of marks) {
      const x = this.x(mark * unit[0]);
      g.fillRect(x, bottom, 1, 4);
      g.fillText(mark.toFixed(Math.min(9, digits)), Math.min(x, LEFT + this.width - 12), bottom + 12);
    }
    g.textAlign = "right";
    g.fillText(unit[1], LEFT - 20, bottom + 12);
    g.setLineDash([4, 3]);
    for (const mark of about.marks_us) this.upright(g, mark, bottom);
    g.setLineDash([]);
    const shown = this.hover >= 0 ? this.hover : this.focus;
    this.flow(g, shown);
    for (const box of [this.focus, this.hover, ...this.alike]) if (box >= 0) {
      const row = about.rows[data.row[box]], a = Math.max(LEFT, this.x(data.x0[box])), b = Math.min(LEFT + this.width, this.x(data.x1[box]));
      g.lineWidth = box === this.focus ? 2.5 : 1.5;
      if (b >= a) g.strokeRect(a, TOP + row.top_px, Math.max(1.5, b - a), row.height_px);
    }
    if (this.brush) {
      const a = Math.max(LEFT, this.x(this.brush.start)), b = Math.min(LEFT + this.width, this.x(this.brush.end));
      g.globalAlpha = 0.16;
      if (b > a) g.fillRect(a, TOP, b - a, bottom - TOP);
      g.globalAlpha = 1;
      for (const edge of [this.brush.start, this.brush.end]) this.upright(g, edge, bottom);
    }
  }

  upright(g, time, bottom) {
    const x = this.x(time);
    if (x < LEFT || x > LEFT + this.width) return;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(x, TOP);
    g.lineTo(x, bottom);
    g.stroke();
  }

  /** A line from a send to its receive. */
  flow(g, box) {
    const {about, data} = this;
    for (const [from, to] of about.flows.filter(pair => pair.includes(box))) {
      const middle = row => TOP + row.top_px + row.height_px / 2;
      const [x0, y0] = [this.x(data.x0[from]), middle(about.rows[data.row[from]])];
      const [x1, y1] = [this.x(data.x1[to]), middle(about.rows[data.row[to]])];
      const length = Math.hypot(x1 - x0, y1 - y0) || 1, [ux, uy] = [8 * (x0 - x1) / length, 8 * (y0 - y1) / length];
      g.lineWidth = 1.5;
      g.beginPath();
      g.moveTo(x0, y0);
      g.lineTo(x1, y1);
      g.lineTo(x1 + ux - 0.5 * uy, y1 + uy + 0.5 * ux); // the head
      g.moveTo(x1, y1);
      g.lineTo(x1 + ux + 0.5 * uy, y1 + uy - 0.5 * ux);
      g.stroke();
    }
  }
}

/** Colours as the four bytes of a pixel, for the columns of small boxes. */
export function inked(looks) {
  const big = new Uint8Array(new Uint32Array([1]).buffer)[0] === 0;
  return looks.map(look => {
    const [r, g, b] = [1, 3, 5].map(i => parseInt(look.colour.slice(i, i + 2), 16));
    return {...look, word32: (big ? (r << 24) | (g << 16) | (b << 8) | 255 : (255 << 24) | (b << 16) | (g << 8) | r) >>> 0};
  });
}

/** Draws a timeline into an element; returns the Viewer. For the widget below, and for pages without a kernel. */
export function show(element, about, bytes, tell) {
  const full = {...about, looks: inked(about.looks)};
  return new Viewer(element, full, decode(full, bytes), tell);
}

export default {
  render({model, el}) {
    const tell = brush => { model.set("selection", brush ? [brush.start, brush.end] : []); model.save_changes(); };
    let viewer = show(el, model.get("about"), model.get("columns"), tell);
    const again = () => {
      viewer.stop();
      el.textContent = "";
      viewer = show(el, model.get("about"), model.get("columns"), tell);
    };
    model.on("change:columns", again);
    return () => { model.off("change:columns", again); viewer.stop(); };
  },
};
