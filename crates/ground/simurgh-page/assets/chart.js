// Line charts over the time of a run: SVG, so that they are crisp, follow the colours of the page
// and can be printed. All charts of a page share one cursor and one stretch of time.
"use strict";

/** What all charts of a page look at: the stretch of time shown, and the time pointed at. */
class Timeline {
  constructor() {
    this.charts = [];
    this.marks = [];
    this.end = 0;
    this.cursor = null;
    /** What legends show without a cursor: the `last` values, or `none`. */
    this.idle = "last";
    this.zoom = null;
    this.follow = null;
  }

  /** `{from, to}` in seconds. */
  range() {
    if (this.zoom) return this.zoom;
    const to = Math.max(this.end, 1);
    return { from: this.follow ? Math.max(0, to - this.follow) : 0, to };
  }

  /** Shows one stretch only; `null` shows what `follow` says. */
  zoomTo(zoom) {
    this.zoom = zoom;
    this.onzoom?.();
    this.draw();
  }

  /** Shows the last so many seconds; `null`: all. */
  followLast(seconds) {
    this.follow = seconds;
    this.zoomTo(null);
  }

  /** Points all charts at a time; `null` at none. */
  point(seconds) {
    this.cursor = seconds;
    for (const chart of this.charts) chart.drawCursor();
  }

  draw() {
    for (const chart of this.charts) chart.draw();
  }
}

const Ticks = (() => {
  const TIME_STEPS = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
  ];

  /** Round numbers from 0 to at least `max`, at least `least` apart. */
  function linear(max, count, least) {
    const raw = Math.max((max || 1) / count, least);
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * size >= raw * 0.9999) * size;
    const ticks = [];
    for (let i = 0; i === 0 || ticks[i - 1] < max * 0.9999; i += 1) ticks.push(i * step);
    return ticks;
  }

  /** Powers of ten round `min` and `max`; with 2 and 5 between, where there is room. */
  function log(min, max) {
    const from = Math.floor(Math.log10(Math.max(min, 1)));
    const to = Math.max(Math.ceil(Math.log10(Math.max(max, 1)) - 1e-9), from + 1);
    const between = to - from <= 2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = from; power < to; power += 1) {
      ticks.push(...between.map((factor) => factor * 10 ** power));
    }
    return [...ticks, 10 ** to];
  }

  /** Times within a range, at most `count` of them. */
  function time({ from, to }, count) {
    const step = TIME_STEPS.find((size) => (to - from) / size <= count)
      ?? Math.ceil((to - from) / count / 86400) * 86400;
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
    return ticks;
  }

  return { linear, log, time };
})();

const Svg = (tag, attributes = {}, text = null) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
};

/**
 * One chart. `spec`: `id`, `title`, `unit` (said beside the title), `kind` of its values (see
 * `Format.as`), `height`, `stacked`, `log`, and `series`: `{key, label, colour, dashed, area}`.
 */
class Chart {
  static #MARGIN = { top: 14, right: 12, bottom: 24, left: 58 };

  constructor(timeline, spec) {
    this.timeline = timeline;
    this.spec = spec;
    this.log = spec.log ?? false;
    this.hidden = new Set();
    this.data = { t: [], values: {} };
    this.#build();
    timeline.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** Draws these values. `t` are seconds; a missing value is `null`. */
  set(data) {
    this.data = data;
    this.draw();
  }

  /** Other lines than before, for a chart whose lines follow from the data. */
  setSeries(series) {
    const same = (a, b) => a.length === b.length && a.every((line, i) => line.key === b[i].key);
    if (same(series, this.spec.series)) return;
    this.spec.series = series;
    this.#buildLegend();
  }

  #build() {
    const { id, title, unit, height = 190 } = this.spec;
    this.node = document.createElement("figure");
    this.node.className = "chart";
    this.node.dataset.testid = `chart-${id}`;
    const head = document.createElement("figcaption");
    const name = document.createElement("h3");
    name.textContent = title;
    const unitNode = document.createElement("span");
    unitNode.className = "unit";
    unitNode.textContent = unit;
    this.tools = document.createElement("div");
    this.tools.className = "chart-tools";
    head.append(name, unitNode, this.tools);
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    this.plot.style.height = `${height}px`;
    this.#slider(title);
    this.svg = Svg("svg", { "aria-hidden": "true" });
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.plot.append(this.svg, this.tip);
    this.node.append(head, this.legend, this.plot);
    this.#buildLegend();
    this.#listen();
  }

  #slider(title) {
    const attributes = {
      tabindex: "0", role: "slider", "aria-valuemin": "0", "aria-valuemax": "0",
      "aria-valuenow": "0", "aria-valuetext": "no time chosen",
      "aria-label": `${title}: arrow keys read the values`,
    };
    for (const [key, value] of Object.entries(attributes)) this.plot.setAttribute(key, value);
  }

  #buildLegend() {
    this.values = new Map();
    const items = this.spec.series.map((line) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = `key ${line.colour}`;
      button.title = "Show or hide";
      button.setAttribute("aria-pressed", String(!this.hidden.has(line.key)));
      const swatch = document.createElement("i");
      swatch.className = line.dashed ? "swatch dashed" : "swatch";
      const label = document.createElement("span");
      label.textContent = line.label;
      const value = document.createElement("b");
      this.values.set(line.key, value);
      button.append(swatch, label, value);
      button.addEventListener("click", () => this.#toggle(line.key, button));
      return button;
    });
    this.legend.replaceChildren(...items);
  }

  #toggle(key, button) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    button.setAttribute("aria-pressed", String(!this.hidden.has(key)));
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth;
    const height = this.plot.clientHeight;
    if (width < 80) return;
    const { top, right, bottom, left } = Chart.#MARGIN;
    this.box = { x: left, y: top, w: width - left - right, h: height - top - bottom };
    this.range = this.timeline.range();
    const rows = this.#rows();
    const [ticks, y] = this.#scale(rows);
    this.y = y;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const marks = Svg("g");
    const lines = Svg("g");
    this.cursorLayer = Svg("g");
    this.#axes(marks, ticks);
    this.#marks(marks);
    for (const row of rows) this.#line(lines, row);
    this.rows = rows;
    this.svg.replaceChildren(marks, lines, this.cursorLayer);
    this.drawCursor();
  }

  x(seconds) {
    const { from, to } = this.range;
    return this.box.x + ((seconds - from) / (to - from)) * this.box.w;
  }

  /** The lines that are shown, from the uppermost of a stack to the lowest. */
  #rows() {
    const { t, values } = this.data;
    const shown = this.spec.series.filter(({ key }) => !this.hidden.has(key) && values[key]);
    if (!this.spec.stacked) return shown.map((line) => ({ line, tops: values[line.key] }));
    let below = new Array(t.length).fill(0);
    const rows = shown.map((line) => {
      below = below.map((value, i) => value + (values[line.key][i] ?? 0));
      return { line, tops: below };
    });
    return rows.reverse();
  }

  /** Ticks, and the function from a value to its height. */
  #scale(rows) {
    const [first, last] = this.#indices();
    let [min, max] = [Infinity, 0];
    for (const { tops } of rows) {
      for (let i = first; i <= last; i += 1) {
        const value = tops[i];
        if (!Format.isNumber(value)) continue;
        if (value > max) max = value;
        if (value > 0 && value < min) min = value;
      }
    }
    const { y, h } = this.box;
    if (this.log) {
      const ticks = Ticks.log(min === Infinity ? 1 : min, max || 10);
      const [low, high] = [Math.log10(ticks[0]), Math.log10(ticks.at(-1))];
      const part = (value) => (Math.log10(Math.max(value, ticks[0])) - low) / (high - low);
      return [ticks, (value) => y + h - part(value) * h];
    }
    const least = this.spec.kind === "count" || this.spec.kind === "rate" ? 4 : 1;
    const apart = this.spec.kind === "count" ? 1 : 0;
    const ticks = Ticks.linear(Math.max(max * 1.04, max > 0 ? 0 : least), h < 140 ? 3 : 4, apart);
    const top = ticks.at(-1);
    return [ticks, (value) => y + h - (value / top) * h];
  }

  /** First and last index within the range, with one point beyond each end. */
  #indices() {
    const { t } = this.data;
    const first = Math.max(0, Chart.#search(t, this.range.from) - 1);
    return [first, Math.min(t.length - 1, Chart.#search(t, this.range.to))];
  }

  /** The first index whose time is not before `seconds`. */
  static #search(t, seconds) {
    let [low, high] = [0, t.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (t[middle] < seconds) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #axes(layer, ticks) {
    const { x, y, w, h } = this.box;
    for (const tick of ticks) {
      const at = Math.round(this.y(tick)) + 0.5;
      layer.append(
        Svg("line", { class: "grid", x1: x, x2: x + w, y1: at, y2: at }),
        Svg("text", { class: "axis", x: x - 8, y: at + 3.5, "text-anchor": "end" },
          Format.as(this.spec.kind, tick)),
      );
    }
    for (const tick of Ticks.time(this.range, Math.max(2, w / 80))) {
      const at = this.x(tick);
      layer.append(
        Svg("line", { class: "tick", x1: at, x2: at, y1: y + h, y2: y + h + 4 }),
        Svg("text", { class: "axis", x: at, y: y + h + 17, "text-anchor": "middle" },
          Format.clock(tick)),
      );
    }
  }

  /** Where phases begin. */
  #marks(layer) {
    const { x, y, w, h } = this.box;
    let free = x;
    for (const { at, label } of this.timeline.marks) {
      const place = this.x(at);
      if (place < x - 0.5 || place > x + w) continue;
      const line = { class: "mark", x1: place, x2: place, y1: y, y2: y + h };
      if (at > 0) layer.append(Svg("line", line));
      if (!this.spec.named || place < free) continue;
      const words = label.length > 22 ? `${label.slice(0, 21)}…` : label;
      const width = words.length * 6.3 + 8;
      if (place + width > x + w + 4) continue;
      layer.append(Svg("text", { class: "mark-label", x: place + 5, y: y - 3 }, words));
      free = place + width;
    }
  }

  #line(layer, { line, tops }) {
    const pieces = this.#pieces(tops);
    const at = ([px, value]) => `${px.toFixed(1)},${this.y(value).toFixed(1)}`;
    // A point alone is drawn as a dot: a line of no length has round ends.
    const path = pieces.map((piece) => (
      `M${piece.map(at).join("L")}${piece.length < 2 ? "h0" : ""}`
    ));
    if (line.area || this.spec.stacked) {
      const foot = (this.box.y + this.box.h).toFixed(1);
      const closed = pieces.filter((piece) => piece.length > 1).map((piece) => {
        const [first, last] = [piece[0][0].toFixed(1), piece.at(-1)[0].toFixed(1)];
        return `M${first},${foot}L${piece.map(at).join("L")}L${last},${foot}Z`;
      });
      const full = this.spec.stacked ? " full" : "";
      layer.append(Svg("path", { class: `area ${line.colour}${full}`, d: closed.join("") }));
    }
    const dashed = line.dashed ? " dashed" : "";
    layer.append(Svg("path", {
      class: `line ${line.colour}${dashed}`, d: path.join(""), "data-key": line.key,
    }));
  }

  /**
   * Runs of points without a gap, each `[x, value]`. No more than two for each pixel: the lowest
   * and the highest, so that no peak is lost.
   */
  #pieces(tops) {
    const { t } = this.data;
    const [first, last] = this.#indices();
    const pieces = [];
    let piece = [];
    let bucket = null;
    const flush = () => {
      if (!bucket) return;
      const { low, high } = bucket;
      if (low === high) piece.push(low);
      else piece.push(...(low[2] < high[2] ? [low, high] : [high, low]));
      bucket = null;
    };
    const dense = last - first > this.box.w;
    for (let i = first; i <= last; i += 1) {
      const value = tops[i];
      if (!Format.isNumber(value)) {
        // Between seconds put together by pixel, one without values is no gap.
        if (dense) continue;
        flush();
        if (piece.length) pieces.push(piece);
        piece = [];
        continue;
      }
      const point = [this.#clamp(this.x(t[i])), value, i];
      const pixel = dense ? Math.round(point[0]) : i;
      if (bucket && bucket.pixel !== pixel) flush();
      if (!bucket) bucket = { pixel, low: point, high: point };
      else if (value < bucket.low[1]) bucket.low = point;
      else if (value > bucket.high[1]) bucket.high = point;
    }
    flush();
    if (piece.length) pieces.push(piece);
    return pieces;
  }

  #clamp(px) {
    return Math.min(Math.max(px, this.box.x), this.box.x + this.box.w);
  }

  /** Index of the point nearest to the cursor; the last one if there is no cursor. */
  #current() {
    const { t } = this.data;
    const { cursor } = this.timeline;
    if (cursor === null || !t.length) return t.length - 1;
    const after = Math.min(Chart.#search(t, cursor), t.length - 1);
    return after > 0 && cursor - t[after - 1] < t[after] - cursor ? after - 1 : after;
  }

  drawCursor() {
    if (!this.cursorLayer) return;
    const index = this.#current();
    const { values, t } = this.data;
    const silent = this.timeline.cursor === null && this.timeline.idle === "none";
    for (const [key, node] of this.values) {
      node.textContent = silent ? "" : Format.as(this.spec.kind, values[key]?.[index]);
    }
    this.cursorLayer.replaceChildren();
    const at = t[index];
    const inside = at >= this.range.from && at <= this.range.to;
    if (this.timeline.cursor === null || !inside) {
      this.tip.hidden = true;
      return;
    }
    const { y, h } = this.box;
    const place = this.x(at);
    const line = { class: "cursor", x1: place, x2: place, y1: y, y2: y + h };
    this.cursorLayer.append(Svg("line", line));
    for (const { line, tops } of this.rows) {
      if (!Format.isNumber(tops[index])) continue;
      const dot = { class: `dot ${line.colour}`, cx: place, cy: this.y(tops[index]), r: 3.5 };
      this.cursorLayer.append(Svg("circle", dot));
    }
    this.#drawTip(index, place);
  }

  /** The values beside the cursor, in the chart that is pointed at. */
  #drawTip(index, place) {
    const active = this.pointed || document.activeElement === this.plot;
    this.tip.hidden = !active;
    if (!active) return;
    const { t, values } = this.data;
    const time = document.createElement("strong");
    time.textContent = Format.clock(t[index]);
    const rows = this.spec.series.filter(({ key }) => !this.hidden.has(key)).map((line) => {
      const row = document.createElement("span");
      const label = document.createElement("span");
      label.textContent = line.label;
      const value = document.createElement("b");
      value.textContent = Format.as(this.spec.kind, values[line.key]?.[index]);
      const swatch = document.createElement("i");
      swatch.className = `swatch ${line.colour}`;
      row.append(swatch, label, value);
      return row;
    });
    this.tip.replaceChildren(time, ...rows);
    const width = this.tip.offsetWidth;
    const right = place + 14 + width < this.plot.clientWidth;
    this.tip.style.left = `${right ? place + 14 : Math.max(0, place - 14 - width)}px`;
    const words = rows.map((row) => row.textContent.trim()).join(", ");
    this.plot.setAttribute("aria-valuemax", String(Math.round(this.range.to)));
    this.plot.setAttribute("aria-valuenow", String(Math.round(t[index])));
    this.plot.setAttribute("aria-valuetext", `${Format.clock(t[index])}: ${words}`);
  }

  #seconds(event) {
    const px = this.#clamp(event.clientX - this.plot.getBoundingClientRect().left);
    const { from, to } = this.range;
    return from + ((px - this.box.x) / this.box.w) * (to - from);
  }

  #listen() {
    const { plot, timeline } = this;
    plot.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      this.pointed = true;
      timeline.point(this.#seconds(event));
      this.#drawDrag();
    });
    plot.addEventListener("pointerleave", () => {
      this.pointed = false;
      timeline.point(null);
    });
    plot.addEventListener("pointerdown", (event) => {
      if (!this.box || event.button !== 0 || event.pointerType === "touch") return;
      this.drag = this.#seconds(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointerup", (event) => this.#drop(event));
    plot.addEventListener("pointercancel", () => { this.drag = null; });
    plot.addEventListener("dblclick", () => timeline.zoomTo(null));
    plot.addEventListener("blur", () => timeline.point(null));
    plot.addEventListener("keydown", (event) => this.#key(event));
  }

  #drawDrag() {
    const { cursor } = this.timeline;
    if (this.drag == null || cursor === null) return;
    const [a, b] = [this.x(this.drag), this.x(cursor)].sort((one, other) => one - other);
    const { y, h } = this.box;
    this.cursorLayer.prepend(Svg("rect", { class: "drag", x: a, y, width: b - a, height: h }));
  }

  /** A stretch that was dragged over is shown alone. */
  #drop(event) {
    if (this.drag == null) return;
    const [from, to] = [this.drag, this.#seconds(event)].sort((a, b) => a - b);
    this.drag = null;
    if (this.x(to) - this.x(from) > 6) this.timeline.zoomTo({ from, to: Math.max(to, from + 1) });
    else this.drawCursor();
  }

  #key(event) {
    const { t } = this.data;
    const index = this.#current();
    const [first, last] = this.#indices();
    const far = event.shiftKey ? 10 : 1;
    const targets = {
      ArrowLeft: index - far, ArrowRight: index + far, Home: first, End: last,
      PageUp: index + 10, PageDown: index - 10,
    };
    if (event.key === "Escape") {
      if (this.timeline.zoom) this.timeline.zoomTo(null);
      this.timeline.point(null);
    } else if (event.key in targets && t.length) {
      event.preventDefault();
      this.timeline.point(t[Math.min(Math.max(targets[event.key], first), last)]);
    }
  }
}
