// Draws the rows of one trace on a canvas, for the part of the time that is looked at, which several may share.
// It draws and finds what lies under a point; hands and keys are in `waterfall`.

import { seconds } from "../components.js";
import { ROW } from "./trace_summary.js";

const SHORTEST_S = 2e-5; // closer than this, clocks of processes mean nothing
const MARGIN = 1.04; // room at the right for what is written after the last bar

export class View {
  constructor() {
    this.from = 0;
    this.to = 1;
    this.length = 1;
    this.isFit = true;
    this.watchers = new Set();
  }

  /** Be told of changes; returns what ends that. */
  watch(watcher) {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }

  /** So long is the longest of what is shown. Who sees all of it goes on seeing all. */
  extend(length) {
    this.length = Math.max(length, SHORTEST_S);
    if (this.isFit) this.fit();
  }

  fit() {
    this.isFit = true;
    this.from = 0;
    this.to = this.length * MARGIN;
    this.tell();
  }

  /** Look at so many times the seconds, around a moment which stays where it is. */
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

  /** Look from one moment to another; what lies outside of all that happened is not looked at. */
  show(from, to) {
    const all = this.length * MARGIN;
    const wide = Math.min(Math.max(to - from, SHORTEST_S), all);
    this.from = Math.min(Math.max(0, from), all - wide);
    this.to = this.from + wide;
    this.isFit = wide >= all;
    this.tell();
  }

  tell() {
    for (const watcher of this.watchers) watcher();
  }
}

/** Moments for an axis: at most `most`, a round number of seconds apart; and how many seconds that is. */
function ticks(from, to, most) {
  const least = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const apart = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999);
  const times = [];
  for (let number = Math.ceil(from / apart); number * apart <= to; number++) times.push(number * apart);
  return { times, apart };
}

/** How high the time axis is, above the rows. */
export const AXIS = 26;
const PAD = 3;
const NEAR = 6; // pixels: so far beside a thin bar or a tick it is still meant
const FONT = "12px system-ui, sans-serif";
const COLOURS = ["paper", "panel", "line", "ink", "soft", "accent", "good", "warn", "bad"];

/** The colours of the theme, as a canvas needs them: a property alone does not tell which of its themes holds. */
export function palette() {
  const probe = document.body.appendChild(document.createElement("i"));
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const found = Object.fromEntries(COLOURS.map((name) => [name, read(name)]));
  found.workers = [...Array(8).keys()].map((number) => ({ fill: read(`w${number}`), line: read(`w${number}-line`) }));
  probe.remove();
  return found;
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
    this.chosen = null; // keys of items: items themselves are made anew when a running request is asked again
    this.hovered = null;
    this.widths = new Map();
    this.colours = palette();
    this.frame = 0;
  }

  /** Where the bars begin, after the names of lanes. */
  get gutter() {
    return this.size.width < 600 ? 92 : 176;
  }

  /** Pixels for a moment, and back. */
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

  /** Draw soon, once for all that changes until then. */
  plan() {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  stop() {
    cancelAnimationFrame(this.frame);
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { ink, colours, size } = this;
    const dots = this.canvas.width / size.width;
    ink.setTransform(dots, 0, 0, dots, 0, 0);
    ink.fillStyle = colours.panel;
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
    const found = ticks(this.view.from, this.view.to, (this.size.width - this.gutter) / 90);
    const { ink, colours } = this;
    ink.fillStyle = colours.line;
    for (const time of found.times) ink.fillRect(Math.round(this.x(time)), AXIS, 1, this.size.height);
    return found;
  }

  drawAxis({ times, apart }) {
    const { ink, colours, size } = this;
    ink.fillStyle = colours.soft;
    ink.textAlign = "left";
    for (const time of times) {
      const x = this.x(time);
      const text = moment(time, apart, this.view.to);
      if (x + this.wide(text) + 4 < size.width) ink.fillText(text, x + 4, AXIS / 2);
      ink.fillRect(Math.round(x), AXIS - 6, 1, 6);
    }
    ink.fillStyle = colours.line;
    ink.fillRect(0, AXIS - 1, size.width, 1);
    const end = Math.round(this.x(this.end));
    if (end < this.gutter || end > size.width) return;
    ink.fillStyle = colours.ink; // where the request ended
    for (let y = AXIS; y < size.height; y += 6) ink.fillRect(end, y, 1, 3);
  }

  drawHead(row, y) {
    const { ink, colours, size } = this;
    ink.fillStyle = colours.paper;
    ink.fillRect(0, y, size.width, row.height);
    ink.fillStyle = this.tint(row.colour).line;
    ink.fillRect(8, y + row.height / 2 - 5, 10, 10);
    ink.fillStyle = colours.ink;
    ink.font = `600 ${FONT}`;
    ink.fillText(row.head, 24, y + row.height / 2 + 0.5);
    ink.font = FONT;
  }

  /** The colours of a process: workers have theirs, the others are neutral. */
  tint(colour) {
    const { soft, line, workers } = this.colours;
    return colour >= 0 ? workers[colour % workers.length] : { line: soft, fill: line };
  }

  drawRow(row, y) {
    const { ink, colours, size } = this;
    ink.save();
    ink.beginPath();
    ink.rect(this.gutter, y, size.width - this.gutter, row.height);
    ink.clip();
    row.items.forEach((item, number) => {
      const left = this.x(item.from);
      const right = this.x(item.end);
      if (right < this.gutter - NEAR || left > size.width + NEAR) return;
      if (item.emission) this.drawTick(item, y, row.items[number - 1]);
      else this.drawBar(item, y, row.items[number - 1], row.items[number + 1]);
      if (item.key === this.chosen || item.key === this.hovered) this.drawFrame(item, left, right, y);
    });
    ink.restore();
    ink.fillStyle = colours.ink;
    ink.fillText(this.fitted(row.label, this.gutter - 30), 24, y + row.height / 2 + 0.5);
  }

  drawFrame(item, left, right, y) {
    const { ink, colours } = this;
    ink.strokeStyle = colours.ink;
    ink.lineWidth = item.key === this.chosen ? 2 : 1;
    ink.strokeRect(left - 2, y + 1, Math.max(1.5, right - left) + 4, ROW - 2);
  }

  /** A bar's solid part is as high as the part of the time in which it was computed: its area is the seconds. */
  drawBar(item, y, last, next) {
    const { span, start, end } = item;
    const { ink, colours } = this;
    const [top, high] = [y + PAD, ROW - 2 * PAD];
    const [x, right] = [this.x(start), Math.max(this.x(end), this.x(start) + 1.5)];
    const tint = this.tint(item.colour);
    const fill = (colour, alpha, ...place) => {
      ink.globalAlpha = alpha;
      ink.fillStyle = colour;
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
      fill(colours.warn, 0.55, x, top, right - x, high);
    } else if (span.kind === "walk") {
      const begun = Math.min(right, this.x(start + span.waited));
      fill(colours.accent, 0.25, x, top, begun - x, high);
      fill(colours.accent, 0.75, begun, top, Math.max(1, right - begun - 1), high);
    } else {
      fill(span.attempt > 1 ? colours.bad : colours.soft, 0.8, x, top + high / 2 - 2, right - x, 4);
    }
    const free = [last ? this.x(last.end) : this.gutter, next ? this.x(next.from) : this.size.width];
    this.caption(item, [x, right], y, free);
  }

  /** What a bar says of itself, beside it or in it, where there is room. */
  caption({ span, from }, [x, right], y, [least, most]) {
    const { ink, colours, size } = this;
    const text = captionOf(span);
    const wide = this.wide(text);
    const middle = y + ROW / 2 + 0.5;
    const before = this.x(from) - 6 - wide;
    ink.fillStyle = colours.ink;
    if (right >= this.gutter && right + 12 + wide < most) ink.fillText(text, right + 6, middle);
    else if (before > Math.max(least + 6, this.gutter)) ink.fillText(text, before, middle);
    else if (Math.min(right, size.width) - Math.max(x, this.gutter) > wide + 12) this.inside(text, wide, x, y);
  }

  inside(text, wide, x, y) {
    const { ink, colours } = this;
    const left = Math.max(x, this.gutter) + 4;
    ink.fillStyle = colours.panel; // a label of its own, because bars have all colours
    ink.fillRect(left, y + PAD + 1, wide + 8, ROW - 2 * PAD - 2);
    ink.fillStyle = colours.ink;
    ink.fillText(text, left + 4, y + ROW / 2 + 0.5);
  }

  /** An emission; when it was due is a short mark, and what it was late by a line in between. */
  drawTick({ emission }, y, last) {
    const { ink, colours } = this;
    const x = this.x(emission.at);
    const isLate = emission.late > 0;
    if (emission.skipped > 0) {
      ink.fillStyle = colours.soft; // there were more in between, whose times were not kept
      for (let dot = this.x(last.start) + 6; dot < x - 4; dot += 6) ink.fillRect(dot, y + ROW / 2, 2, 1);
    }
    if (emission.due !== null) {
      const due = this.x(emission.due);
      ink.fillStyle = isLate ? colours.bad : colours.good;
      ink.fillRect(due - 1, y + ROW - 6, 2, 5);
      if (isLate) ink.fillRect(due, y + ROW - 4, x - due, 2);
    }
    ink.fillStyle = isLate ? colours.bad : colours.ink;
    ink.fillRect(x - 1, y + 2, 2, ROW - 4);
  }

  wide(text) {
    let found = this.widths.get(text);
    if (found === undefined) {
      if (this.widths.size > 2000) this.widths.clear();
      this.widths.set(text, (found = this.ink.measureText(text).width));
    }
    return found;
  }

  fitted(text, most) {
    if (this.wide(text) <= most) return text;
    let length = text.length - 1;
    while (length > 1 && this.wide(`${text.slice(0, length)}…`) > most) length--;
    return `${text.slice(0, length)}…`;
  }

  /** What lies under a point, or null. */
  find(x, y) {
    if (x < this.gutter || y < AXIS) return null;
    const at = y - AXIS + this.scroll;
    const row = this.rows.find((each) => each.y <= at && at < each.y + each.height);
    let [found, nearest] = [null, NEAR];
    for (const item of row?.items ?? []) {
      const [left, right] = [this.x(item.emission ? item.start : item.from), this.x(item.end)];
      const away = Math.max(0, left - x, x - right);
      if (away < nearest) [found, nearest] = [item, away];
    }
    return found;
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

/** A moment on an axis that goes to another, with as many digits as the distance of its ticks needs. */
function moment(time, apart, to) {
  if (time === 0) return "0";
  const [size, unit] = to >= 1 ? [1, "s"] : to >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(apart * size * 1.001)));
  return `${(time * size).toFixed(digits)} ${unit}`;
}
