// Who stands where: brings each request's dots to the boxes that a tick tells, in the field of its walk,
// and keeps the frames going while something moves. It draws nothing itself.

import { hueFor, refreshColours } from "./colours.js";
import { isRunning } from "./workers.js";

const COOL_MS = 150;
export const LANE = "";

export class DotAnimator {
  /** `rings`: by worker, the number of its colour. */
  constructor(model, rings) {
    Object.assign(this, { model, rings, fields: new Map(), pulses: new Map(), calls: new Map(), records: new Map() });
    this.last = 0;
    this.frame = 0;
    this.timer = 0;
    this.wake = () => {
      this.frame ||= requestAnimationFrame((now) => this._frame(now));
    };
    refreshColours();
  }

  /** A walk's panel is there; LANE is the name of the one where requests wait. */
  enter(name, field, pulses, calls = []) {
    this.fields.set(name, field);
    if (pulses) this.pulses.set(name, pulses);
    this.calls.set(name, calls);
  }

  close() {
    cancelAnimationFrame(this.frame);
    clearInterval(this.timer);
    this.wake = () => {};
  }

  repaint() {
    if (refreshColours()) for (const field of this.fields.values()) field.repaint();
  }

  tick(tick) {
    const told = tick.requests.filter(({ model }) => model === this.model);
    if (tick.full) this._removeMissing(new Set(told.map(({ rid }) => rid)));
    for (const request of told) this._placeRequest(request, tick.full);
    for (const rid of tick.ended) this._end(rid, tick.failed.includes(rid) ? "bad" : "good");
    for (const { model, walk, at, worker, calls } of tick.ops) {
      if (model === this.model && calls) this.fields.get(walk)?.circle(this.calls.get(walk)[at], worker, calls);
    }
    this._pulse(tick);
  }

  _pulse(tick) {
    const span = Math.max(0.05, Math.min(1, tick.t - this.last));
    this.last = tick.t;
    const gone = new Set(tick.workers.filter((worker) => !isRunning(worker)).map(({ name }) => name));
    for (const pulses of this.pulses.values()) {
      pulses.tick(tick, this.model, span);
      pulses.workers(gone);
    }
    this.timer ||= setInterval(() => {
      let glows = false;
      for (const pulses of this.pulses.values()) glows = pulses.cool() || glows;
      if (!glows) this.timer = clearInterval(this.timer) ?? 0;
    }, COOL_MS);
  }

  /** Where a request's dots belong: [field, spot, worker] each; null when they may stay where they are. */
  _targetSpots(request, record) {
    const field = this.fields.get(request.walk);
    const calls = this.calls.get(request.walk) ?? [];
    if (request.walk && field) {
      const found = request.at.filter(([, at]) => calls[at]).map(([worker, at]) => [field, calls[at], worker]);
      if (found.length) return found;
      // Between two calls of one walk nothing is told; only who is new there, or has no worker, stands at its gate.
      const mayStay = request.state !== "waiting" && record.dots.some((dot) => dot.field === field);
      return mayStay ? null : [[field, "gate", ""]];
    }
    const lane = this.fields.get(LANE);
    if (request.state === "running") return record.dots.length ? null : [[lane, "between", ""]];
    return [[lane, request.state === "queued" ? "queue" : "between", ""]];
  }

  _placeRequest(request, isFull) {
    let record = this.records.get(request.rid);
    if (!record) {
      record = { request, dots: [], look: request.id === null ? "other" : hueFor(request.rid) };
      this.records.set(request.rid, record);
    }
    const isRetried = request.attempt > record.request.attempt;
    record.request = request;
    const wants = this._targetSpots(request, record);
    if (wants) this._assignDots(record, wants, isFull);
    if (isRetried) for (const dot of record.dots) dot.field.flash(dot);
  }

  /** Each place gets the dot that was its worker's, or one that is free in the same field, or a new one. */
  _assignDots(record, wants, isFull) {
    const free = new Set(record.dots);
    const mine = wants.map(([field, , worker]) => {
      const dot = record.dots.find((one) => free.has(one) && one.field === field && one.worker === worker);
      free.delete(dot);
      return dot;
    });
    record.dots = wants.map(([field, spot, worker], at) => {
      let dot = mine[at] ?? [...free].find((one) => one.field === field);
      free.delete(dot);
      const ring = this.rings.get(worker) ?? -1;
      if (dot) {
        field.assignWorker(dot, worker, ring);
        field.move(dot, spot);
      } else {
        const sibling = record.dots.find((one) => one.field === field);
        dot = field.add(record, worker, ring, spot, isFull ? null : sibling ?? {});
      }
      return dot;
    });
    for (const dot of free) dot.field.remove(dot);
  }

  _end(rid, look) {
    const record = this.records.get(rid);
    if (!record) return;
    for (const dot of record.dots) dot.field.remove(dot, look);
    this.records.delete(rid);
  }

  _removeMissing(kept) {
    for (const [rid, record] of this.records) {
      if (kept.has(rid)) continue;
      for (const dot of record.dots) dot.field.remove(dot);
      this.records.delete(rid);
    }
  }

  _frame(now) {
    this.frame = 0;
    let isMoving = false;
    for (const field of this.fields.values()) if (field.isDirty && field.frame(now)) isMoving = true;
    if (isMoving) this.wake();
  }
}
