// The trace viewer, second part: time and pixels, and the canvas.

const LEFT = 64, RIGHT = 8, AXIS = 26, TOP = 6, INK = "#10161f";
/** Colours as the four bytes of a pixel, for the columns of small boxes. */
export function inked(looks) {
  const big = new Uint8Array(new Uint32Array([1]).buffer)[0] === 0;
  return looks.map(look => {
    const [r, g, b] = [1, 3, 5].map(i => parseInt(look.colour.slice(i, i + 2), 16));
    return {...look, word32: (big ? (r << 24) | (g << 16) | (b << 8) | 255 : (255 << 24) | (b << 16) | (g << 8) | r) >>> 0};
  });
}

/** A timeline on a canvas: what is in view, and how it is drawn. */
class Painter {
  constructor(about, data) {
    Object.assign(this, {about, data, words: about.words});
    this.whole = {start: about.start_us, end: Math.max(about.end_us, about.start_us + 1e-3)};
    this.view = {...this.whole};
    Object.assign(this, {focus: -1, hover: -1, brush: null, query: "", matches: null, alike: new Set()});
  }

  get scale() { return this.width / (this.view.end - this.view.start); }
  time(x) { return this.view.start + (x - LEFT) / this.scale; }
  x(time) { return LEFT + (time - this.view.start) * this.scale; }

  resize() {
    const width = Math.max(320, Math.floor(this.box.clientWidth || 900));
    const ratio = window.devicePixelRatio || 1;
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
    const {ratio} = this;
    const left = Math.round(LEFT * ratio), top = Math.round((TOP + row.top_px) * ratio);
    const height = Math.max(1, Math.round(row.height_px * ratio));
    this.columns(g, cover, left, top, height);
    for (const {box, a: from, b: to} of large) {
      const a = Math.round(from), b = Math.round(to);
      const dim = this.matches && !this.matches[this.data.label[box]];
      this.block(g, box, dim, [left + a, top, b - a, height]);
      if (!dim && b - a > 14 * ratio && row.height_px >= 13) {
        const labels = this.about.labels[this.data.label[box]];
        const fits = labels.find(text => text && 6.7 * text.length + 4 <= (b - a) / ratio);
        const middle = [(left + (a + b) / 2) / ratio, TOP + row.top_px + row.height_px / 2];
        if (fits) texts.push([fits, ...middle]);
      }
    }
    g.globalAlpha = 1;
  }

  columns(g, cover, left, top, height) {
    const {about} = this, width = Math.round(this.width * this.ratio);
    const used = cover.map((mine, look) => [look, mine]).filter(([, mine]) => mine);
    if (!used.length) return;
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

  /** A large box: its colour, its hatch, its right edge. */
  block(g, box, dim, [x, y, width, height]) {
    const look = this.about.looks[this.data.look[box]];
    g.globalAlpha = dim ? 0.25 : 1;
    g.fillStyle = look.colour;
    g.fillRect(x, y, width, height);
    if (look.hatch && width > 5 * this.ratio) {
      g.fillStyle = this.tile(look);
      g.fillRect(x, y, width, height);
    }
    if (width > 3 * this.ratio) {
      g.fillStyle = INK;
      g.globalAlpha *= 0.35;
      g.fillRect(x + width - 1, y, 1, height);
    }
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

  /** All but the boxes: names, the axis, marks, what is pointed at, what is brushed. */
  frame(g, ink) {
    const {about} = this, bottom = TOP + about.height_px + 4;
    g.fillStyle = g.strokeStyle = ink;
    g.textAlign = "right";
    for (const row of about.rows) {
      if (row.name) g.fillText(row.name, LEFT - 6, TOP + row.top_px + row.height_px / 2);
    }
    g.textAlign = "left";
    for (const head of about.headings) g.fillText(head.text, LEFT, TOP + head.bottom_px - 4);
    this.axis(g, bottom);
    g.setLineDash([4, 3]);
    for (const mark of about.marks_us) this.upright(g, mark, bottom);
    g.setLineDash([]);
    this.flow(g, this.hover >= 0 ? this.hover : this.focus);
    this.outlines(g);
    if (this.brush) this.brushed(g, bottom);
  }

  axis(g, bottom) {
    const {view} = this;
    const unit = view.end >= 1e6 ? [1e6, "s"] : view.end >= 1e3 ? [1e3, "ms"] : [1, "us"];
    g.globalAlpha = 0.5;
    g.fillRect(LEFT, bottom, this.width, 1);
    g.globalAlpha = 1;
    const most = Math.max(2, Math.floor(this.width / 90));
    const marks = ticks(view.start / unit[0], view.end / unit[0], most);
    const digits = Math.max(0, Math.ceil(-Math.log10((marks[1] ?? 2) - (marks[0] ?? 1)) - 1e-9));
    g.textAlign = "center";
    for (const mark of marks) {
      const x = this.x(mark * unit[0]);
      g.fillRect(x, bottom, 1, 4);
      const words = mark.toFixed(Math.min(9, digits));
      g.fillText(words, Math.min(x, LEFT + this.width - 12), bottom + 12);
    }
    g.textAlign = "right";
    g.fillText(unit[1], LEFT - 20, bottom + 12);
  }

  /** Around the box that has the focus, the one pointed at, and those like it. */
  outlines(g) {
    const {about, data} = this;
    for (const box of [this.focus, this.hover, ...this.alike]) {
      if (box < 0) continue;
      const row = about.rows[data.row[box]];
      const a = Math.max(LEFT, this.x(data.x0[box]));
      const b = Math.min(LEFT + this.width, this.x(data.x1[box]));
      g.lineWidth = box === this.focus ? 2.5 : 1.5;
      if (b >= a) g.strokeRect(a, TOP + row.top_px, Math.max(1.5, b - a), row.height_px);
    }
  }

  brushed(g, bottom) {
    const a = Math.max(LEFT, this.x(this.brush.start));
    const b = Math.min(LEFT + this.width, this.x(this.brush.end));
    g.globalAlpha = 0.16;
    if (b > a) g.fillRect(a, TOP, b - a, bottom - TOP);
    g.globalAlpha = 1;
    for (const edge of [this.brush.start, this.brush.end]) this.upright(g, edge, bottom);
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

