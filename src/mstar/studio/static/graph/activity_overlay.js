// Live overlay of a walk's SVG: utilization of ops, largest batch, waiting requests, stream fill, ops without a worker.
// It sets an attribute only when it changes.

import { BAR } from "./picture.js";

const LEVELS = 4;
const BADGE_MS = 900;
const HEAT_DECAY = 0.6;

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

  /** Apply a tick: ops that ran in `span` seconds, waiting requests, stream fill. */
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
        box.until = now + BADGE_MS;
      }
      show(box.wait, sum?.waiting ? String(sum.waiting) : "");
    }
    this._updateStreams(tick.streams.filter((stream) => stream.model === model && stream.walk === this.walk.name));
  }

  /** Decay the heat of ops. Returns whether anything is still highlighted. */
  cool() {
    const now = performance.now();
    let isActive = false;
    for (const box of this.boxes.values()) {
      const level = Math.ceil(box.heat * LEVELS - 0.05);
      if (level !== box.level) {
        box.halo.setAttribute("visibility", level ? "visible" : "hidden");
        box.halo.setAttribute("stroke-width", 1 + 2 * level);
        box.level = level;
      }
      box.heat = box.heat < 0.05 ? 0 : box.heat * HEAT_DECAY;
      if (box.until && now > box.until) {
        show(box.badge, "");
        box.until = 0;
      }
      isActive ||= box.heat > 0 || box.level > 0 || box.until > 0;
    }
    return isActive;
  }

  /** Mark ops whose workers are all down. `down`: names of workers. */
  setDownWorkers(down) {
    const key = [...down].join(" ");
    if (key === this.off) return;
    this.off = key;
    for (const { group, workers } of this.boxes.values()) {
      group.classList.toggle("off", workers.length > 0 && workers.every((name) => down.has(name)));
      for (const strip of group.querySelectorAll(".worker")) strip.classList.toggle("off", down.has(strip.dataset.worker));
    }
  }

  _updateStreams(streams) {
    for (const group of this.streams) {
      const own = streams.filter(({ stream }) => stream === group.dataset.stream);
      const items = Math.max(0, ...own.map((each) => each.items));
      const bound = own[0]?.bound;
      show(group, own.length ? (bound ? `${items}/${bound}` : String(items)) : "");
      const width = String(Math.round(BAR * Math.min(1, items / (bound || items || 1))));
      const bar = group.children[1];
      if (bar.getAttribute("width") !== width) bar.setAttribute("width", width);
    }
  }
}
