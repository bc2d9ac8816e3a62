// Canvas chart of one trace for a time range, which several charts can share. Draws and hit-tests;
// `waterfall` handles input.

import { seconds } from "../components.js";
import { ROW } from "./trace_summary.js";

const SHORTEST_S = 2e-5; // minimum range: below it, clock differences between processes dominate
const MARGIN = 1.04; // space at the right for the last caption

export class View {
  constructor() {
    this.from = 0;
    this.to = 1;
    this.length = 1;
    this.isFit = true;
    this.listeners = new Set();
  }

  /** Subscribe to changes. Returns a function that unsubscribes. */
  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Set the total length. A view that fits all keeps fitting all. */
  extend(length) {
    this.length = Math.max(length, SHORTEST_S);
    if (this.isFit) this.fit();
  }

  fit() {
    this.isFit = true;
    this.from = 0;
    this.to = this.length * MARGIN;
    this.notify();
  }

  /** Scale the time range by `factor` around a fixed point. */
  zoom(factor, around = (this.from + this.to) / 2) {
    const all = this.length * MARGIN;
    const wide = Math.max(SHORTEST_S, (this.to - this.from) * factor);
    if (wide >= all) return this.fit();
    const share = (around - this.from) / (this.to - this.from);
    this.show(around - share * wide, around + (1 - share) * wide);
  }

  pan(seconds) {
    if (!this.isFit) this.show(this.from + seconds, this.to + seconds);
  }

  /** Show a time range, clamped to the trace. */
  show(from, to) {
    const all = this.length * MARGIN;
    const wide = Math.min(Math.max(to - from, SHORTEST_S), all);
    this.from = Math.min(Math.max(0, from), all - wide);
    this.to = this.from + wide;
    this.isFit = wide >= all;
    this.notify();
  }

  notify() {
    for (const listener of this.listeners) listener();
  }
}

/** Axis ticks: at most `most`, at round distances, and their distance. */
function ticks(from, to, most) {
  const least = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const apart = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999);
  const times = [];
  for (let number = Math.ceil(from / apart); number * apart <= to; number++) times.push(number * apart);
  return { times, apart };
}

/** Height of the time axis above the rows. */
export const AXIS = 26;
const PAD = 3;
const HIT_RADIUS = 6; // hit tolerance beside a thin bar or tick, in pixels
const FONT = "12px system-ui, sans-serif";
const COLORS = ["paper", "panel", "line", "ink", "soft", "accent", "good", "warn", "bad"];

/** Colors of the current theme, resolved for a canvas. */
export function palette() {
  const probe = document.body.appendChild(document.createElement("i"));
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colors = Object.fromEntries(COLORS.map((name) => [name, read(name)]));
  colors.workers = [...Array(8).keys()].map((number) => ({ fill: read(`w${number}`), line: read(`w${number}-line`) }));
  probe.remove();
  return colors;
}

export class Chart {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d");
    this.view = view;
    this.rows = [];
    this.end = 0;
    this.size = { width: 1, height: 1 };
    this.scroll = 0;
    this.chosen = null; // keys, because items are rebuilt on every poll
    this.hovered = null;
    this.widths = new Map();
    this.colors = palette();
    this.frame = 0;
  }

  /** Width of the labels before the bars. */
  get gutter() {
    return this.size.width < 600 ? 92 : 176;
  }

  /** Pixel position of a time. `time` is the inverse. */
  x(time) {
    const { from, to } = this.view;
    return this.gutter + ((time - from) / (to - from)) * (this.size.width - this.gutter);
  }

  time(x) {
    const { from, to } = this.view;
    return from + ((x - this.gutter) / (this.size.width - this.gutter)) * (to - from);
  }

  resize(width, height) {
    const dots = devicePixelRatio || 1;
    this.size = { width, height };
    this.canvas.width = Math.round(width * dots);
    this.canvas.height = Math.round(height * dots);
    this.draw();
  }

  /** Schedule one redraw for all pending changes. */
  plan() {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  stop() {
    cancelAnimationFrame(this.frame);
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { ink, colors, size } = this;
    const dots = this.canvas.width / size.width;
    ink.setTransform(dots, 0, 0, dots, 0, 0);
    ink.fillStyle = colors.panel;
    ink.fillRect(0, 0, size.width, size.height);
    ink.font = FONT;
    ink.textBaseline = "middle";
    const axis = this.axis();
    ink.save();
    ink.beginPath();
    ink.rect(0, AXIS, size.width, size.height - AXIS);
    ink.clip();
    for (const row of this.rows) {
      const y = AXIS + row.y - this.scroll;
      if (y + row.height < AXIS || y > size.height) continue;
      if (row.head) this.drawHead(row, y);
      else this.drawRow(row, y);
    }
    ink.restore();
    this.drawAxis(axis);
  }

  axis() {
    const axis = ticks(this.view.from, this.view.to, (this.size.width - this.gutter) / 90);
    const { ink, colors } = this;
    ink.fillStyle = colors.line;
    for (const time of axis.times) ink.fillRect(Math.round(this.x(time)), AXIS, 1, this.size.height);
    return axis;
  }

  drawAxis({ times, apart }) {
    const { ink, colors, size } = this;
    ink.fillStyle = colors.soft;
    ink.textAlign = "left";
    for (const time of times) {
      const x = this.x(time);
      const text = moment(time, apart, this.view.to);
      if (x + this.wide(text) + 4 < size.width) ink.fillText(text, x + 4, AXIS / 2);
      ink.fillRect(Math.round(x), AXIS - 6, 1, 6);
    }
    ink.fillStyle = colors.line;
    ink.fillRect(0, AXIS - 1, size.width, 1);
    const end = Math.round(this.x(this.end));
    if (end < this.gutter || end > size.width) return;
    ink.fillStyle = colors.ink; // end of the request
    for (let y = AXIS; y < size.height; y += 6) ink.fillRect(end, y, 1, 3);
  }

  drawHead(row, y) {
    const { ink, colors, size } = this;
    ink.fillStyle = colors.paper;
    ink.fillRect(0, y, size.width, row.height);
    ink.fillStyle = this.tint(row.color).line;
    ink.fillRect(8, y + row.height / 2 - 5, 10, 10);
    ink.fillStyle = colors.ink;
    ink.font = `600 ${FONT}`;
    ink.fillText(row.head, 24, y + row.height / 2 + 0.5);
    ink.font = FONT;
  }

  /** Colors of a process: each worker has its own, other processes are neutral. */
  tint(color) {
    const { soft, line, workers } = this.colors;
    return color >= 0 ? workers[color % workers.length] : { line: soft, fill: line };
  }

  drawRow(row, y) {
    const { ink, colors, size } = this;
    ink.save();
    ink.beginPath();
    ink.rect(this.gutter, y, size.width - this.gutter, row.height);
    ink.clip();
    row.items.forEach((item, number) => {
      const left = this.x(item.from);
      const right = this.x(item.end);
      if (right < this.gutter - HIT_RADIUS || left > size.width + HIT_RADIUS) return;
      if (item.emission) this.drawTick(item, y, row.items[number - 1]);
      else this.drawBar(item, y, row.items[number - 1], row.items[number + 1]);
      if (item.key === this.chosen || item.key === this.hovered) this.drawFrame(item, left, right, y);
    });
    ink.restore();
    ink.fillStyle = colors.ink;
    ink.fillText(this.fitted(row.label, this.gutter - 30), 24, y + row.height / 2 + 0.5);
  }

  drawFrame(item, left, right, y) {
    const { ink, colors } = this;
    ink.strokeStyle = colors.ink;
    ink.lineWidth = item.key === this.chosen ? 2 : 1;
    ink.strokeRect(left - 2, y + 1, Math.max(1.5, right - left) + 4, ROW - 2);
  }

  /** The height of a bar's solid part is the share of compute time, so its area is the compute time. */
  drawBar(item, y, last, next) {
    const { span, start, end } = item;
    const { ink, colors } = this;
    const [top, high] = [y + PAD, ROW - 2 * PAD];
    const [x, right] = [this.x(start), Math.max(this.x(end), this.x(start) + 1.5)];
    const tint = this.tint(item.color);
    const fill = (color, alpha, ...place) => {
      ink.globalAlpha = alpha;
      ink.fillStyle = color;
      ink.fillRect(...place);
      ink.globalAlpha = 1;
    };
    if (span.kind === "op" || span.kind === "transfer") {
      const before = this.x(item.from);
      const wide = Math.max(end - start, 1e-9);
      const solid = Math.min(1, span.busy / wide);
      const light = Math.max(0, Math.min(1 - solid, (span.waited - (start - item.from)) / wide));
      const part = Math.max(1, solid * high);
      fill(tint.line, 0.4, before, top, x - before, high);
      fill(tint.fill, 1, x, top, right - x, high);
      fill(tint.line, 1, x, top + high - part, right - x, part);
      if (light > 0) fill(tint.line, 0.4, x, top + high - part - light * high, right - x, light * high);
    } else if (span.kind === "queued") {
      fill(colors.warn, 0.55, x, top, right - x, high);
    } else if (span.kind === "walk") {
      const startedAt = Math.min(right, this.x(start + span.waited));
      fill(colors.accent, 0.25, x, top, startedAt - x, high);
      fill(colors.accent, 0.75, startedAt, top, Math.max(1, right - startedAt - 1), high);
    } else {
      fill(span.attempt > 1 ? colors.bad : colors.soft, 0.8, x, top + high / 2 - 2, right - x, 4);
    }
    const free = [last ? this.x(last.end) : this.gutter, next ? this.x(next.from) : this.size.width];
    this.caption(item, [x, right], y, free);
  }

  /** Caption of a bar, beside or inside it, where it fits. */
  caption({ span, from }, [x, right], y, [least, most]) {
    const { ink, colors, size } = this;
    const text = captionOf(span);
    const wide = this.wide(text);
    const middle = y + ROW / 2 + 0.5;
    const before = this.x(from) - 6 - wide;
    ink.fillStyle = colors.ink;
    if (right >= this.gutter && right + 12 + wide < most) ink.fillText(text, right + 6, middle);
    else if (before > Math.max(least + 6, this.gutter)) ink.fillText(text, before, middle);
    else if (Math.min(right, size.width) - Math.max(x, this.gutter) > wide + 12) this.inside(text, wide, x, y);
  }

  inside(text, wide, x, y) {
    const { ink, colors } = this;
    const left = Math.max(x, this.gutter) + 4;
    ink.fillStyle = colors.panel; // a background, because bars have any color
    ink.fillRect(left, y + PAD + 1, wide + 8, ROW - 2 * PAD - 2);
    ink.fillStyle = colors.ink;
    ink.fillText(text, left + 4, y + ROW / 2 + 0.5);
  }

  /** Tick of an emission, with a mark at its deadline and a line for its lateness. */
  drawTick({ emission }, y, last) {
    const { ink, colors } = this;
    const x = this.x(emission.at);
    const isLate = emission.late > 0;
    if (emission.skipped > 0) {
      ink.fillStyle = colors.soft; // further emissions without timestamps
      for (let dot = this.x(last.start) + 6; dot < x - 4; dot += 6) ink.fillRect(dot, y + ROW / 2, 2, 1);
    }
    if (emission.due !== null) {
      const due = this.x(emission.due);
      ink.fillStyle = isLate ? colors.bad : colors.good;
      ink.fillRect(due - 1, y + ROW - 6, 2, 5);
      if (isLate) ink.fillRect(due, y + ROW - 4, x - due, 2);
    }
    ink.fillStyle = isLate ? colors.bad : colors.ink;
    ink.fillRect(x - 1, y + 2, 2, ROW - 4);
  }

  wide(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 2000) this.widths.clear();
      this.widths.set(text, (width = this.ink.measureText(text).width));
    }
    return width;
  }

  fitted(text, most) {
    if (this.wide(text) <= most) return text;
    let length = text.length - 1;
    while (length > 1 && this.wide(`${text.slice(0, length)}…`) > most) length--;
    return `${text.slice(0, length)}…`;
  }

  /** The item under a point, or null. */
  find(x, y) {
    if (x < this.gutter || y < AXIS) return null;
    const at = y - AXIS + this.scroll;
    const row = this.rows.find((each) => each.y <= at && at < each.y + each.height);
    let [closest, distance] = [null, HIT_RADIUS];
    for (const item of row?.items ?? []) {
      const [left, right] = [this.x(item.emission ? item.start : item.from), this.x(item.end)];
      const away = Math.max(0, left - x, x - right);
      if (away < distance) [closest, distance] = [item, away];
    }
    return closest;
  }
}

function captionOf(span) {
  const long = seconds(span.end - span.start);
  if (span.kind === "op") return `${seconds(span.busy)}${span.calls > 1 ? ` in ${span.calls} calls` : ""}`;
  if (span.kind === "transfer") return `${span.calls}×, ${seconds(span.busy)}`;
  if (span.kind === "walk") return `${span.name} ${long}`;
  if (span.kind === "attempt" && span.attempt > 1) return `attempt ${span.attempt}: ${span.text || long}`;
  return long;
}

/** Label of an axis tick, with the digits that the tick distance needs. */
function moment(time, apart, to) {
  if (time === 0) return "0";
  const [size, unit] = to >= 1 ? [1, "s"] : to >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(apart * size * 1.001)));
  return `${(time * size).toFixed(digits)} ${unit}`;
}
