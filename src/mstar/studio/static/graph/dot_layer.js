// The dots of one picture on its canvas: where each is, how it moves, and which one is under the pointer.
// It knows spots and dots, not requests: who goes where is decided in dot_animator.js. Nothing is allocated per frame.

import { colour, sprite } from "./colours.js";

const [STILL, TRAVEL, CIRCLE, LEAVE] = [0, 1, 2, 3];
const [TRAVEL_MS, CIRCLE_MS, LEAVE_MS, END_MS, FLASH_MS] = [250, 300, 250, 700, 700];
const [ROWS, COME] = [3, 24];
const NEAR = 10;
const quiet = matchMedia("(prefers-reduced-motion: reduce)");
const eased = (t) => t * t * (3 - 2 * t);

export class DotLayer {
  /** `spots`: by id {id, kind: "box"|"gate"|"lane", x, y, w, h} in the picture's units; `way(from, to)` as edge_paths.js. */
  constructor({ canvas, spots, way, wake }) {
    this.canvas = canvas;
    this.draw = canvas.getContext("2d");
    this.spots = spots;
    this.way = way;
    this.wake = wake;
    this.dots = [];
    this.isSeen = true;
    this.isDirty = true;
    for (const spot of spots.values()) spot.taken = [];
  }

  /** The sheet has another size: `scale` and the corner of the picture, in the picture's units. */
  resize(width, height, scale, left, top) {
    const ratio = devicePixelRatio;
    Object.assign(this, { width, height, scale, left, top });
    this.radius = Math.max(4.5, Math.min(6, Math.round(12 * scale) / 2));
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const dot of this.dots) {
      this._aim(dot);
      this._paint(dot);
      if (dot.kind !== LEAVE) this._settle(dot);
    }
    this._markDirty();
  }

  /** All dots anew: the theme is another. */
  repaint() {
    for (const dot of this.dots) this._paint(dot);
    this._markDirty();
  }

  /** A dot for `owner` at `spot`; it comes from a sibling's place, or from the left, or is just there. */
  add(owner, worker, ring, spot, from) {
    const dot = { owner, worker, ring, field: this, kind: STILL, alpha: 1, begin: 0, flash: 0, look: owner.look };
    this.dots.push(dot);
    this._take(dot, spot);
    this._paint(dot);
    if (from && !quiet.matches) {
      const start = from.spot ? from : { x: dot.tx - COME, y: dot.ty };
      Object.assign(dot, { kind: TRAVEL, x: start.x, y: start.y, fx: start.x, fy: start.y, begin: performance.now() });
      dot.way = from.spot && this._between(from.spot, dot.spot);
      dot.fades = !from.spot;
    } else this._settle(dot);
    this._markDirty();
    return dot;
  }

  /** A dot goes to another spot. */
  move(dot, spot) {
    const before = dot.spot;
    if (before.id === spot) return;
    this._free(dot);
    this._take(dot, spot);
    if (quiet.matches) this._settle(dot);
    else {
      Object.assign(dot, { kind: TRAVEL, fx: dot.x, fy: dot.y, begin: performance.now(), fades: false });
      dot.way = this._between(before, dot.spot);
    }
    this._markDirty();
  }

  /** A dot belongs to another worker now. */
  assignWorker(dot, worker, ring) {
    if (dot.worker === worker) return;
    dot.worker = worker;
    dot.ring = ring;
    this._paint(dot);
    this._markDirty();
  }

  /** A dot goes: to the right when its request has ended, and looks "good" or "bad"; else it fades where it is. */
  remove(dot, look) {
    this._free(dot);
    if (look) {
      dot.look = look;
      this._paint(dot);
    }
    const length = quiet.matches ? 0 : look ? END_MS : LEAVE_MS;
    const far = look ? 56 : 12;
    Object.assign(dot, { kind: LEAVE, fx: dot.x, begin: performance.now(), length, far });
    this._markDirty();
  }

  flash(dot) {
    if (!quiet.matches) dot.flash = performance.now();
    this._markDirty();
  }

  /** So many calls ran at a spot: as many of its resting dots go round once. */
  circle(id, worker, calls) {
    const spot = this.spots.get(id);
    if (!spot || quiet.matches) return;
    const now = performance.now();
    for (const dot of spot.taken) {
      if (!calls) break;
      if (!dot || dot.kind !== STILL || dot.worker !== worker) continue;
      dot.kind = CIRCLE;
      dot.begin = now;
      calls--;
    }
    this._markDirty();
  }

  /** The dot nearest to a point of the sheet; null when none is near. */
  nearest(x, y) {
    let [found, least] = [null, NEAR * NEAR];
    for (const dot of this.dots) {
      if (dot.kind === LEAVE) continue;
      const far = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (far < least) [found, least] = [dot, far];
    }
    return found;
  }

  /** Draw it as it is at `now`; whether something still moves. */
  frame(now) {
    const { draw, dots } = this;
    if (this.isSeen) draw.clearRect(0, 0, this.width, this.height);
    let isMoving = false;
    for (let at = dots.length - 1; at >= 0; at--) {
      const dot = dots[at];
      if (dot.kind !== STILL || dot.flash) isMoving = true;
      if (dot.kind !== STILL && this._step(dot, now)) {
        dots[at] = dots[dots.length - 1];
        dots.pop();
      } else if (this.isSeen) this._stamp(dot, now);
    }
    if (draw.globalAlpha !== 1) draw.globalAlpha = 1;
    this.isDirty = isMoving;
    return isMoving;
  }

  _stamp(dot, now) {
    const { draw } = this;
    const size = dot.size;
    if (draw.globalAlpha !== dot.alpha) draw.globalAlpha = dot.alpha;
    draw.drawImage(dot.sprite, dot.x - size / 2, dot.y - size / 2, size, size);
    if (!dot.flash) return;
    const part = Math.max(0, now - dot.flash) / FLASH_MS;
    if (part >= 1) dot.flash = 0;
    else {
      draw.globalAlpha = 1 - part;
      draw.strokeStyle = colour("--bad");
      draw.lineWidth = 2;
      draw.beginPath();
      draw.arc(dot.x, dot.y, this.radius + 14 * part, 0, 7);
      draw.stroke();
    }
  }

  /** Move one dot on; whether it is gone. */
  _step(dot, now) {
    const length = dot.kind === TRAVEL ? TRAVEL_MS : dot.kind === CIRCLE ? CIRCLE_MS : dot.length;
    const part = length ? Math.max(0, (now - dot.begin) / length) : 1;
    if (part >= 1) {
      if (dot.kind === LEAVE) return true;
      this._settle(dot);
    } else if (dot.kind === TRAVEL) this._travel(dot, eased(part));
    else if (dot.kind === CIRCLE) {
      const turn = eased(part) * 2 * Math.PI;
      dot.x = dot.tx + 5 * Math.sin(turn);
      dot.y = dot.ty + 5 * (Math.cos(turn) - 1);
    } else {
      dot.alpha = 1 - part;
      dot.x = dot.fx + dot.far * part;
    }
    return false;
  }

  _travel(dot, part) {
    if (dot.fades) dot.alpha = part;
    const { way } = dot;
    if (!way) {
      dot.x = dot.fx + (dot.tx - dot.fx) * part;
      dot.y = dot.fy + (dot.ty - dot.fy) * part;
      return;
    }
    // The way leads from border to border; what lies between its ends and the dot's own places goes away on the way.
    const last = way.length / 2 - 1;
    const at = Math.min(last - 1, Math.floor(part * last));
    const rest = part * last - at;
    const { scale, left, top } = this;
    const x = (way[2 * at] + (way[2 * at + 2] - way[2 * at]) * rest - left) * scale;
    const y = (way[2 * at + 1] + (way[2 * at + 3] - way[2 * at + 1]) * rest - top) * scale;
    const [early, late] = [Math.max(0, 1 - part * 4), Math.max(0, part * 4 - 3)];
    dot.x = x + (dot.fx - (way[0] - left) * scale) * early + (dot.tx - (way[2 * last] - left) * scale) * late;
    dot.y = y + (dot.fy - (way[1] - top) * scale) * early + (dot.ty - (way[2 * last + 1] - top) * scale) * late;
  }

  _between(from, to) {
    return from.kind === "box" && to.kind === "box" ? this.way(from.id, to.id) : null;
  }

  _settle(dot) {
    Object.assign(dot, { kind: STILL, x: dot.tx, y: dot.ty, alpha: 1 });
  }

  _paint(dot) {
    dot.sprite = sprite(dot.look, dot.ring, this.radius ?? 5);
    dot.size = dot.sprite.width / devicePixelRatio;
  }

  _take(dot, id) {
    const spot = this.spots.get(id);
    // The first place that is free: nobody has to move when somebody comes or goes.
    let slot = spot.taken.indexOf(null);
    if (slot < 0) slot = spot.taken.length;
    spot.taken[slot] = dot;
    dot.spot = spot;
    dot.slot = slot;
    this._aim(dot);
  }

  _free(dot) {
    if (dot.spot.taken[dot.slot] === dot) dot.spot.taken[dot.slot] = null;
  }

  /** Where a dot's place at its spot is, on the screen. */
  _aim(dot) {
    const { spot, slot } = dot;
    const { scale = 1, left = 0, top = 0, radius = 5 } = this;
    const step = 2 * radius + 0.5;
    const [x, y, w, h] = [(spot.x - left) * scale, (spot.y - top) * scale, spot.w * scale, spot.h * scale];
    if (spot.kind === "lane") {
      const room = Math.max(1, Math.floor(w / step));
      dot.tx = x + radius + (slot % room) * step + Math.floor(slot / room) * 2;
      dot.ty = y + h / 2;
      return;
    }
    const isGate = spot.kind === "gate";
    // A row hangs at the lower border of a box, further ones under it; then they lie closer, between the others.
    const room = Math.max(1, Math.floor(((isGate ? h : w) - 2) / step));
    const [place, row] = [slot % room, Math.floor(slot / room)];
    const along = ((place + 1) >> 1) * (place % 2 ? -step : step) + (Math.floor(row / ROWS) % 2 ? step / 2 : 0);
    dot.tx = isGate ? x + w / 2 + row * 2 : x + w / 2 + along;
    dot.ty = isGate ? y + h / 2 + along : y + h + (row % ROWS) * step;
  }

  _markDirty() {
    this.isDirty = true;
    this.wake();
  }
}
