// Dot animator: moves the dots of each request to the ops of the latest tick, in the layer of its walk,
// and requests animation frames while something moves. It draws nothing itself.

import { hueFor, refreshColors } from "./colors.js";
import { isRunning } from "./workers.js";

const COOL_MS = 150;
export const QUEUE_LAYER = "";

export class DotAnimator {
  /** `rings`: color index by worker. */
  constructor(model, rings) {
    Object.assign(this, { model, rings, layers: new Map(), overlays: new Map(), calls: new Map(), records: new Map() });
    this.last = 0;
    this.frame = 0;
    this.timer = 0;
    this.wake = () => {
      this.frame ||= requestAnimationFrame((now) => this._frame(now));
    };
    refreshColors();
  }

  /** Register the layer of a walk. QUEUE_LAYER is the name of the one for requests in no walk. */
  addLayer(name, layer, overlay, calls = []) {
    this.layers.set(name, layer);
    if (overlay) this.overlays.set(name, overlay);
    this.calls.set(name, calls);
  }

  close() {
    cancelAnimationFrame(this.frame);
    clearInterval(this.timer);
    this.wake = () => {};
  }

  repaint() {
    if (refreshColors()) for (const layer of this.layers.values()) layer.repaint();
  }

  tick(tick) {
    const requests = tick.requests.filter(({ model }) => model === this.model);
    if (tick.full) this._removeMissing(new Set(requests.map(({ rid }) => rid)));
    for (const request of requests) this._placeRequest(request, tick.full);
    for (const rid of tick.ended) this._end(rid, tick.failed.includes(rid) ? "bad" : "good");
    for (const { model, walk, at, worker, calls } of tick.ops) {
      if (model === this.model && calls) this.layers.get(walk)?.circle(this.calls.get(walk)[at], worker, calls);
    }
    this._updateOverlays(tick);
  }

  _updateOverlays(tick) {
    const span = Math.max(0.05, Math.min(1, tick.t - this.last));
    this.last = tick.t;
    const down = new Set(tick.workers.filter((worker) => !isRunning(worker)).map(({ name }) => name));
    for (const overlay of this.overlays.values()) {
      overlay.tick(tick, this.model, span);
      overlay.setDownWorkers(down);
    }
    this.timer ||= setInterval(() => {
      let isActive = false;
      for (const overlay of this.overlays.values()) isActive = overlay.cool() || isActive;
      if (!isActive) this.timer = clearInterval(this.timer) ?? 0;
    }, COOL_MS);
  }

  /** Targets of a request's dots: [layer, spot, worker] each. Null: they stay. */
  _targetSpots(request, record) {
    const layer = this.layers.get(request.walk);
    const calls = this.calls.get(request.walk) ?? [];
    if (request.walk && layer) {
      const targets = request.at.filter(([, at]) => calls[at]).map(([worker, at]) => [layer, calls[at], worker]);
      if (targets.length) return targets;
      // Between two calls a tick has no position: dots stay, unless the request is new in the walk or waits for a worker.
      const canStay = request.state !== "waiting" && record.dots.some((dot) => dot.layer === layer);
      return canStay ? null : [[layer, "entry", ""]];
    }
    const queue = this.layers.get(QUEUE_LAYER);
    if (request.state === "running") return record.dots.length ? null : [[queue, "between", ""]];
    return [[queue, request.state === "queued" ? "queue" : "between", ""]];
  }

  _placeRequest(request, isFull) {
    let record = this.records.get(request.rid);
    if (!record) {
      record = { request, dots: [], look: request.id === null ? "other" : hueFor(request.rid) };
      this.records.set(request.rid, record);
    }
    const isRetried = request.attempt > record.request.attempt;
    record.request = request;
    const targets = this._targetSpots(request, record);
    if (targets) this._assignDots(record, targets, isFull);
    if (isRetried) for (const dot of record.dots) dot.layer.flash(dot);
  }

  /** Each target gets the dot of its worker, else a free dot in the same layer, else a new one. */
  _assignDots(record, targets, isFull) {
    const free = new Set(record.dots);
    const own = targets.map(([layer, , worker]) => {
      const dot = record.dots.find((one) => free.has(one) && one.layer === layer && one.worker === worker);
      free.delete(dot);
      return dot;
    });
    record.dots = targets.map(([layer, spot, worker], at) => {
      let dot = own[at] ?? [...free].find((one) => one.layer === layer);
      free.delete(dot);
      const ring = this.rings.get(worker) ?? -1;
      if (dot) {
        layer.assignWorker(dot, worker, ring);
        layer.move(dot, spot);
      } else {
        const sibling = record.dots.find((one) => one.layer === layer);
        dot = layer.add(record, worker, ring, spot, isFull ? null : sibling ?? {});
      }
      return dot;
    });
    for (const dot of free) dot.layer.remove(dot);
  }

  _end(rid, look) {
    const record = this.records.get(rid);
    if (!record) return;
    for (const dot of record.dots) dot.layer.remove(dot, look);
    this.records.delete(rid);
  }

  _removeMissing(present) {
    for (const [rid, record] of this.records) {
      if (present.has(rid)) continue;
      for (const dot of record.dots) dot.layer.remove(dot);
      this.records.delete(rid);
    }
  }

  _frame(now) {
    this.frame = 0;
    let isMoving = false;
    for (const layer of this.layers.values()) if (layer.isDirty && layer.frame(now)) isMoving = true;
    if (isMoving) this.wake();
  }
}
