// The trace viewer, last part: what a person does with it, and how pages and notebooks show it.

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

/** An element inside another one. */
function make(tag, parent, set = {}) {
  const child = Object.assign(document.createElement(tag), set);
  parent.append(child);
  return child;
}

/** The canvas with its tools, words and table, and everything that a person does to them. */
class Viewer extends Painter {
  constructor(element, about, data, tell = () => {}) {
    super(about, data);
    this.tell = tell;
    this.build(element);
    this.listen();
    this.tellBox(-1);
    this.resize();
  }

  build(element) {
    const {about, words} = this;
    this.box = make("section", element, {className: "labkit-viewer"});
    make("style", this.box, {textContent: STYLE});
    const head = make("header", this.box);
    make("b", head, {textContent: about.heading});
    for (const [name, value] of about.numbers) make("span", head, {textContent: `${name} ${value}`});
    make("span", head, {textContent: about.badge});
    this.tools(make("div", this.box, {className: "tools"}));
    this.canvas = make("canvas", this.box, {tabIndex: 0});
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", about.title);
    this.canvas.setAttribute("aria-description", `${about.summary} ${words.keys}`);
    this.said = make("div", this.box, {className: "said"});
    this.said.setAttribute("aria-live", "polite");
    this.legend(make("div", this.box, {className: "legend"}));
    this.details = make("details", this.box);
    make("summary", this.details, {textContent: words.table});
    this.table = make("div", this.details);
    this.tabulate();
  }

  tools(parent) {
    const {words} = this;
    const button = (text, label, act) => {
      const onclick = () => { act(); this.paint(); };
      const made = make("button", parent, {textContent: text, title: label, type: "button", onclick});
      made.setAttribute("aria-label", label);
    };
    button("+", words.in, () => this.zoom(0.5));
    button("−", words.out, () => this.zoom(2));
    button("0", words.all, () => { this.view = {...this.whole}; });
    button("←", words.left, () => this.pan(-0.25));
    button("→", words.right, () => this.pan(0.25));
    button("p", words.previous, () => this.step(-1));
    button("n", words.next, () => this.step(1));
    button(words.zoom, words.zoom, () => {
      if (this.brush) this.view = moved({...this.brush}, 0, this.whole);
    });
    this.search = make("input", parent, {type: "search", placeholder: words.search, size: 14});
    this.search.setAttribute("aria-label", words.search);
    button("Perfetto ↓", words.perfetto, () => this.download());
  }

  legend(parent) {
    const seen = new Set(this.data.look);
    this.about.looks.forEach((look, index) => {
      if (!seen.has(index) || look.chunk) return;
      const item = make("span", parent);
      const swatch = make("span", item, {className: "swatch", textContent: look.letter});
      swatch.style.background = look.hatch ? `${hatching(look.hatch)} ${look.colour}` : look.colour;
      item.append(look.word);
    });
  }

  listen() {
    this.point(this.canvas);
    this.roll(this.canvas);
    this.type(this.canvas);
    this.search.oninput = () => { this.find(this.search.value); this.paint(); };
    this.search.onkeydown = event => {
      event.stopPropagation();
      if (event.key === "Enter") { this.step(event.shiftKey ? -1 : 1); this.paint(); }
    };
    this.watch();
  }

  /** The time that a pointer is at. */
  timeAt(event) { return this.time(event.clientX - this.canvas.getBoundingClientRect().left); }

  point(c) {
    const time = event => this.timeAt(event);
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
  }

  roll(c) {
    c.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== c) return; // the page scrolls
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
        this.view = moved(this.view, (event.deltaX || event.deltaY) / this.scale, this.whole);
      else this.view = zoomed(this.view, this.timeAt(event), Math.exp(0.002 * event.deltaY), this.whole);
      this.paint();
    }, {passive: false});
  }

  type(c) {
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
  }

  /** The size of the page and its theme. */
  watch() {
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
