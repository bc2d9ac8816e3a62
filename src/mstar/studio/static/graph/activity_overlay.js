// What changes in a picture's SVG: how busy an op is, its largest batch, who waits for it, how full streams are,
// and which boxes have nobody left to run them. Sets attributes only where something changed.

import { BAR } from "./picture.js";

const LEVELS = 4;
const SHOWN_MS = 900;
const COOLS = 0.6;

function show(group, text) {
  const word = group.lastElementChild;
  if (text === group.dataset.text) return;
  group.dataset.text = text;
  group.setAttribute("visibility", text ? "visible" : "hidden");
  if (text) word.textContent = text;
}

export class ActivityOverlay {
  constructor(svg, walk) {
    this.walk = walk;
    this.boxes = new Map();
    const workers = new Map(walk.picture.boxes.map((box) => [box.id, box.workers]));
    for (const group of svg.querySelectorAll("[data-box]")) {
      const [halo, badge, wait] = [".halo", ".badge", ".wait"].map((name) => group.querySelector(name));
      const about = { group, halo, badge, wait, workers: workers.get(group.dataset.box) };
      this.boxes.set(group.dataset.box, { ...about, heat: 0, level: 0, until: 0 });
    }
    this.streams = [...svg.querySelectorAll("[data-stream]")];
    this.off = "";
  }

  /** What ran in `span` seconds, and what waits and is stored now. */
  tick(tick, model, span) {
    const ops = tick.ops.filter((op) => op.model === model && op.walk === this.walk.name);
    const sums = new Map();
    for (const { at, busy, largest_batch: largest, waiting } of ops) {
      const sum = sums.get(this.walk.calls[at]) ?? { busy: 0, largest: 0, waiting: 0 };
      sum.busy += busy;
      sum.waiting += waiting;
      sum.largest = Math.max(sum.largest, largest);
      sums.set(this.walk.calls[at], sum);
    }
    const now = performance.now();
    for (const [id, box] of this.boxes) {
      const sum = sums.get(id);
      if (sum?.busy) box.heat = Math.max(box.heat, Math.min(1, sum.busy / span));
      if (sum?.largest > 1) {
        show(box.badge, `×${sum.largest}`);
        box.until = now + SHOWN_MS;
      }
      show(box.wait, sum?.waiting ? String(sum.waiting) : "");
    }
    this._fill(tick.streams.filter((one) => one.model === model && one.walk === this.walk.name));
  }

  /** A tenth of a second or so has passed; whether anything still glows. */
  cool() {
    const now = performance.now();
    let glows = false;
    for (const box of this.boxes.values()) {
      const level = Math.ceil(box.heat * LEVELS - 0.05);
      if (level !== box.level) {
        box.halo.setAttribute("visibility", level ? "visible" : "hidden");
        box.halo.setAttribute("stroke-width", 1 + 2 * level);
        box.level = level;
      }
      box.heat = box.heat < 0.05 ? 0 : box.heat * COOLS;
      if (box.until && now > box.until) {
        show(box.badge, "");
        box.until = 0;
      }
      glows ||= box.heat > 0 || box.level > 0 || box.until > 0;
    }
    return glows;
  }

  /** `gone`: the names of workers that are not there. */
  workers(gone) {
    const key = [...gone].join(" ");
    if (key === this.off) return;
    this.off = key;
    for (const { group, workers } of this.boxes.values()) {
      group.classList.toggle("off", workers.length > 0 && workers.every((name) => gone.has(name)));
      for (const seat of group.querySelectorAll(".seat")) seat.classList.toggle("off", gone.has(seat.dataset.worker));
    }
  }

  _fill(told) {
    for (const group of this.streams) {
      const mine = told.filter(({ stream }) => stream === group.dataset.stream);
      const items = Math.max(0, ...mine.map((one) => one.items));
      const bound = mine[0]?.bound;
      show(group, mine.length ? (bound ? `${items}/${bound}` : String(items)) : "");
      const width = String(Math.round(BAR * Math.min(1, items / (bound || items || 1))));
      const bar = group.children[1];
      if (bar.getAttribute("width") !== width) bar.setAttribute("width", width);
    }
  }
}
