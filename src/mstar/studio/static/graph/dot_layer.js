// Canvas layer with the dots of one picture: positions, animation and hit testing.
// It knows spots and dots, not requests: dot_animator.js chooses the targets. It allocates nothing per frame.

import { color, sprite } from "./colors.js";

const [STILL, TRAVEL, CIRCLE, FADE] = [0, 1, 2, 3];
const TRAVEL_MS = 250;
const CIRCLE_MS = 300;
const FADE_MS = 250;
const END_MS = 700;
const FLASH_MS = 700;
const ROWS = 3;
const ENTRY_OFFSET = 24;
const HIT_RADIUS = 10;
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const eased = (t) => t * t * (3 - 2 * t);

export class DotLayer {
  /** `spots`: by id {id, kind: "box"|"entry"|"queue", x, y, w, h} in picture units; `path(from, to)` as in edge_paths.js. */
  constructor({ canvas, spots, path, wake }) {
    this.canvas = canvas;
    this.draw = canvas.getContext("2d");
    this.spots = spots;
    this.path = path;
    this.wake = wake;
    this.dots = [];
    this.isSeen = true;
    this.isDirty = true;
    for (const spot of spots.values()) spot.slots = [];
  }

  /** Set the size in pixels, the scale, and the corner of the picture in picture units. */
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
      if (dot.kind !== FADE) this._settle(dot);
    }
    this._markDirty();
  }

  /** Render all dots again after a theme change. */
  repaint() {
    for (const dot of this.dots) this._paint(dot);
    this._markDirty();
  }

  /** Add a dot for `owner` at `spot`. It enters from a sibling dot, from the left, or without animation. */
  add(owner, worker, ring, spot, from) {
    const dot = { owner, worker, ring, layer: this, kind: STILL, alpha: 1, begin: 0, flash: 0, look: owner.look };
    this.dots.push(dot);
    this._occupy(dot, spot);
    this._paint(dot);
    if (from && !reducedMotion.matches) {
      // Not beyond the left border, where the canvas would cut it off.
      const start = from.spot ? from : { x: Math.max(Math.min(dot.tx, dot.size / 2), dot.tx - ENTRY_OFFSET), y: dot.ty };
      Object.assign(dot, { kind: TRAVEL, x: start.x, y: start.y, fx: start.x, fy: start.y, begin: performance.now() });
      dot.path = from.spot && this._between(from.spot, dot.spot);
      dot.fades = !from.spot;
    } else this._settle(dot);
    this._markDirty();
    return dot;
  }

  /** Move a dot to another spot. */
  move(dot, spot) {
    const before = dot.spot;
    if (before.id === spot) return;
    this._free(dot);
    this._occupy(dot, spot);
    if (reducedMotion.matches) this._settle(dot);
    else {
      Object.assign(dot, { kind: TRAVEL, fx: dot.x, fy: dot.y, begin: performance.now(), fades: false });
      dot.path = this._between(before, dot.spot);
    }
    this._markDirty();
  }

  /** Change the worker of a dot. */
  assignWorker(dot, worker, ring) {
    if (dot.worker === worker) return;
    dot.worker = worker;
    dot.ring = ring;
    this._paint(dot);
    this._markDirty();
  }

  /** Remove a dot. With `look` "good" or "bad" it moves right, because its request has ended; otherwise it fades out. */
  remove(dot, look) {
    this._free(dot);
    if (look) {
      dot.look = look;
      this._paint(dot);
    }
    const length = reducedMotion.matches ? 0 : look ? END_MS : FADE_MS;
    const far = look ? 56 : 12;
    Object.assign(dot, { kind: FADE, fx: dot.x, begin: performance.now(), length, far });
    this._markDirty();
  }

  flash(dot) {
    if (!reducedMotion.matches) dot.flash = performance.now();
    this._markDirty();
  }

  /** Animate up to `calls` still dots at a spot, because that many calls ran. */
  circle(id, worker, calls) {
    const spot = this.spots.get(id);
    if (!spot || reducedMotion.matches) return;
    const now = performance.now();
    for (const dot of spot.slots) {
      if (!calls) break;
      if (!dot || dot.kind !== STILL || dot.worker !== worker) continue;
      dot.kind = CIRCLE;
      dot.begin = now;
      calls--;
    }
    this._markDirty();
  }

  /** The dot closest to a point of the canvas. Null: none within HIT_RADIUS. */
  nearest(x, y) {
    let [closest, shortest] = [null, HIT_RADIUS * HIT_RADIUS];
    for (const dot of this.dots) {
      if (dot.kind === FADE) continue;
      const distance = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (distance < shortest) [closest, shortest] = [dot, distance];
    }
    return closest;
  }

  /** Draw one frame. Returns whether something still moves. */
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
      draw.strokeStyle = color("--bad");
      draw.lineWidth = 2;
      draw.beginPath();
      draw.arc(dot.x, dot.y, this.radius + 14 * part, 0, 7);
      draw.stroke();
    }
  }

  /** Advance one dot. Returns whether it has vanished. */
  _step(dot, now) {
    const length = dot.kind === TRAVEL ? TRAVEL_MS : dot.kind === CIRCLE ? CIRCLE_MS : dot.length;
    const part = length ? Math.max(0, (now - dot.begin) / length) : 1;
    if (part >= 1) {
      if (dot.kind === FADE) return true;
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
    const { path } = dot;
    if (!path) {
      dot.x = dot.fx + (dot.tx - dot.fx) * part;
      dot.y = dot.fy + (dot.ty - dot.fy) * part;
      return;
    }
    // The path connects box borders; the offset to the dot's slots is blended out at both ends.
    const last = path.length / 2 - 1;
    const at = Math.min(last - 1, Math.floor(part * last));
    const rest = part * last - at;
    const { scale, left, top } = this;
    const x = (path[2 * at] + (path[2 * at + 2] - path[2 * at]) * rest - left) * scale;
    const y = (path[2 * at + 1] + (path[2 * at + 3] - path[2 * at + 1]) * rest - top) * scale;
    const [early, late] = [Math.max(0, 1 - part * 4), Math.max(0, part * 4 - 3)];
    dot.x = x + (dot.fx - (path[0] - left) * scale) * early + (dot.tx - (path[2 * last] - left) * scale) * late;
    dot.y = y + (dot.fy - (path[1] - top) * scale) * early + (dot.ty - (path[2 * last + 1] - top) * scale) * late;
  }

  _between(from, to) {
    return from.kind === "box" && to.kind === "box" ? this.path(from.id, to.id) : null;
  }

  _settle(dot) {
    Object.assign(dot, { kind: STILL, x: dot.tx, y: dot.ty, alpha: 1 });
  }

  _paint(dot) {
    dot.sprite = sprite(dot.look, dot.ring, this.radius ?? 5);
    dot.size = dot.sprite.width / devicePixelRatio;
  }

  _occupy(dot, id) {
    const spot = this.spots.get(id);
    // The first free slot, so that other dots do not move.
    let slot = spot.slots.indexOf(null);
    if (slot < 0) slot = spot.slots.length;
    spot.slots[slot] = dot;
    dot.spot = spot;
    dot.slot = slot;
    this._aim(dot);
  }

  _free(dot) {
    if (dot.spot.slots[dot.slot] === dot) dot.spot.slots[dot.slot] = null;
  }

  /** Compute the pixel position of a dot's slot. */
  _aim(dot) {
    const { spot, slot } = dot;
    const { scale = 1, left = 0, top = 0, radius = 5 } = this;
    const step = 2 * radius + 0.5;
    const [x, y, w, h] = [(spot.x - left) * scale, (spot.y - top) * scale, spot.w * scale, spot.h * scale];
    if (spot.kind === "queue") {
      const room = Math.max(1, Math.floor(w / step));
      dot.tx = x + radius + (slot % room) * step + Math.floor(slot / room) * 2;
      dot.ty = y + h / 2;
      return;
    }
    const isEntry = spot.kind === "entry";
    // Rows start at the lower border of a box; after ROWS rows the next ones are interleaved.
    const room = Math.max(1, Math.floor(((isEntry ? h : w) - 2) / step));
    const [column, row] = [slot % room, Math.floor(slot / room)];
    const along = ((column + 1) >> 1) * (column % 2 ? -step : step) + (Math.floor(row / ROWS) % 2 ? step / 2 : 0);
    dot.tx = isEntry ? x + w / 2 + row * 2 : x + w / 2 + along;
    dot.ty = isEntry ? y + h / 2 + along : y + h + (row % ROWS) * step;
  }

  _markDirty() {
    this.isDirty = true;
    this.wake();
  }
}
