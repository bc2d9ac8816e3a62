// Summary of a trace: rows of the waterfall, totals for the tables, and the one-line summary. Draws nothing.

import { seconds } from "../components.js";

export const ROW = 20;
const HEAD = 26;

const SPECIAL = /^(front|conductor(-\d+)?)$/;
const ORDER = ["request", "queued", "attempt", "walk", "op", "transfer"];

/** Workers of some traces, in color order. */
export function traceWorkers(...traces) {
  const workers = processes(...traces).filter((name) => !SPECIAL.test(name));
  return workers.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

function processes(...traces) {
  return [...new Set(traces.flatMap((trace) => trace.spans.map((span) => span.process)))];
}

/** Queue wait of an op before its first call, where its bar starts. */
function waitedBefore(span) {
  if (span.kind !== "op") return 0;
  return Math.min(span.waited, Math.max(0, span.waited + span.busy - (span.end - span.start)));
}

/** Whether the trace has deadlines of emissions. */
export function hasDeadlines(trace) {
  return trace.emissions.some((one) => one.due?.length);
}

/** Duration of a trace, including late spans. */
export function traceLength(trace) {
  return Math.max(trace.seconds, ...trace.spans.map((span) => span.end));
}

/**
 * `rows`: top to bottom, `{y, height, head}` or `{y, height, label, items}`; `items`: all bars and ticks in that order;
 * `height`: total height.
 */
export function layout(trace, workers) {
  const rows = [];
  let y = 0;
  const add = (row, height) => {
    rows.push({ ...row, y, height });
    y += height;
  };
  const special = processes(trace).filter((name) => SPECIAL.test(name)).sort().reverse(); // front, then conductor
  for (const process of [...special, ...workers]) {
    const color = workers.indexOf(process);
    const tracks = processTracks(trace, process);
    if (!tracks.length) continue;
    add({ head: process, color }, HEAD);
    for (const track of tracks) {
      packRows(track.items).forEach((items, number) => add({ label: number ? "" : track.label, color, items }, ROW));
    }
  }
  rows.forEach((row, number) => row.items?.forEach((item) => Object.assign(item, { row: number, color: row.color })));
  return { rows, items: rows.flatMap((row) => row.items ?? []), height: y };
}

function processTracks(trace, process) {
  const tracks = new Map();
  for (const span of trace.spans) {
    if (span.process !== process) continue;
    const label = span.kind === "walk" ? "walks" : span.name;
    const key = `${ORDER.indexOf(span.kind)} ${label}`;
    if (!tracks.has(key)) tracks.set(key, { label, items: [] });
    tracks.get(key).items.push(toBar(span));
  }
  const sorted = [...tracks].sort(([a], [b]) => Number(a[0]) - Number(b[0])).map(([, track]) => track);
  if (process === "front") sorted.push(...trace.emissions.map(emissionTrack));
  return sorted;
}

function toBar(span) {
  const start = Math.max(0, span.start); // clocks of two processes can differ slightly
  const before = waitedBefore(span);
  const key = [span.process, span.rid, span.kind, span.name, span.number, span.attempt, span.start].join(" ");
  return { key, span, start, end: Math.max(start, span.end), from: Math.max(0, start - before) };
}

/** Emissions of one kind, with their deadlines if they have any. */
export function emissionTimes(one) {
  const times = one.due ?? [];
  const timed = (number, at, due) => ({ kind: one.kind, number, at, ...against(at, due) });
  const items = one.first.map((at, number) => timed(number + 1, at, times[number]));
  if (one.count > items.length) {
    items.push({ ...timed(one.count, one.last), skipped: one.count - items.length - 1 });
  }
  return items;
}

function against(at, due) {
  return Number.isFinite(due) ? { due, late: Math.max(0, at - due) } : { due: null, late: 0 };
}

function emissionTrack(one) {
  const items = emissionTimes(one).map((emission) => {
    const from = Math.min(emission.at, emission.due ?? emission.at);
    return { key: `${emission.kind} ${emission.number}`, emission, start: emission.at, end: emission.at, from };
  });
  return { label: `${one.kind} (${one.count})`, items };
}

/** Overlapping bars get separate rows. Emissions are ticks and share one row. */
function packRows(items) {
  if (items[0]?.emission) return [items];
  const rows = [];
  for (const item of [...items].sort((a, b) => a.from - b.from)) {
    const row = rows.find((each) => each.at(-1).end <= item.from + 1e-9);
    if (row) row.push(item);
    else rows.push([item]);
  }
  return rows;
}

/** Status of a request with its state and CSS class. */
export function requestStatus({ status, code }) {
  if (status === null) return { text: "running", state: "running", look: "runs" };
  if (status === 499) return { text: "499 canceled", state: "canceled", look: "warn" };
  const text = `${status} ${code}`.trim();
  return status < 400 ? { text, state: "succeeded", look: "good" } : { text, state: "failed", look: "bad" };
}

/** "ValueError at model.py:12": the exception that failed a request, empty without one. */
export function reasonText({ error }) {
  return [error?.type, error?.location].filter(Boolean).join(" at ");
}

/** "14 Text, 3 Audio". */
export function formatEmissions(request) {
  return request.emissions.map((one) => `${one.count} ${one.kind}`).join(", ") || "none";
}

/** Totals of each op and transfer over all walks and attempts, longest compute time first. */
export function totals(trace) {
  const byName = new Map();
  for (const span of trace.spans) {
    const name = { op: span.name, transfer: `transfer ${span.process} ${span.name}`, queued: "queued" }[span.kind];
    if (!name) continue;
    const sums = { calls: 0, busy: 0, waited: 0, batch: 0 };
    if (!byName.has(name)) byName.set(name, { name, kind: span.kind, processes: new Set(), walks: new Set(), ...sums });
    const one = byName.get(name);
    one.calls += span.calls;
    one.busy += span.kind === "queued" ? span.end - span.start : span.busy;
    one.waited += span.waited;
    one.batch = Math.max(one.batch, span.batch);
    one.processes.add(span.process);
    if (span.walk) one.walks.add(span.walk);
  }
  return [...byName.values()].sort((a, b) => b.busy - a.busy);
}

/** Seconds covered by queueing, ops and transfers; overlaps count once. */
function covered(trace) {
  const parts = trace.spans
    .filter((span) => ["queued", "op", "transfer"].includes(span.kind))
    .map((span) => [Math.max(0, span.start - waitedBefore(span)), Math.min(span.end, trace.seconds)])
    .sort((a, b) => a[0] - b[0]);
  let [sum, until] = [0, 0];
  for (const [from, to] of parts) {
    if (to > until) sum += to - Math.max(from, until);
    until = Math.max(until, to);
  }
  return sum;
}

/** Emissions after their deadline. */
function late(trace) {
  return trace.emissions.flatMap(emissionTimes).filter((one) => one.late > 0);
}

/** One-line summary: `length` "1.83 s", `text` "queued 0.02, lm.step 1.10 in 34 calls, …", and `asides`. */
export function summary(trace) {
  const all = trace.seconds;
  const figure = (x) => (all >= 1 ? x.toFixed(2) : (x * 1000).toFixed(x < 0.01 ? 1 : 0));
  const counts = (x) => x >= all * 0.01 && Number(figure(x)) > 0;
  const rows = totals(trace);
  const ops = rows.filter((row) => row.kind === "op");
  const shown = ops.filter((row) => counts(row.busy)).slice(0, 4);
  const sum = (each, key) => each.reduce((so, row) => so + row[key], 0);
  const parts = [];
  const add = (label, x) => counts(x) && parts.push(`${label} ${figure(x)}`);
  add("queued", sum(rows.filter((row) => row.kind === "queued"), "busy"));
  for (const row of shown) {
    parts.push(`${row.name} ${figure(row.busy)}${row.calls > 1 ? ` in ${row.calls} calls` : ""}`);
  }
  const others = ops.filter((row) => !shown.includes(row));
  add(others.length === 1 ? others[0].name : `${others.length} other ops`, sum(others, "busy"));
  add("queue wait", sum(ops, "waited"));
  add("transfers", sum(rows.filter((row) => row.kind === "transfer"), "busy"));
  add("outside ops", all - covered(trace));
  const length = all >= 1 ? `${all.toFixed(2)} s` : `${figure(all)} ms`;
  return { length, text: parts.join(", "), asides: asides(trace) };
}

/** Further facts: TTFT, retries and late emissions; `bad` marks problems. */
function asides(trace) {
  const facts = [];
  const first = trace.emissions.map((one) => [one.first[0], one.kind]).sort((a, b) => a[0] - b[0]);
  for (const [when, kind] of first) facts.push({ text: `first ${kind} after ${seconds(when)}` });
  const attempts = trace.spans.filter((span) => span.kind === "attempt");
  const retries = attempts.filter((span) => span.attempt > 1);
  if (retries.length) {
    const reasons = [...new Set(retries.map((span) => span.text).filter(Boolean))].join("; ");
    facts.push({ text: `retried ${retries.length}×${reasons ? `: ${reasons}` : ""}`, bad: true });
  }
  const lates = late(trace);
  if (lates.length) {
    const worst = Math.max(...lates.map((one) => one.late));
    const count = lates.length === 1 ? "1 emission" : `${lates.length} emissions`;
    facts.push({ text: `${count} late, by up to ${seconds(worst)}`, bad: true });
  }
  return facts;
}

/** Details of a bar or tick as [label, value] pairs; the first is its name. */
export function details(item) {
  return item.emission ? ofEmission(item.emission) : ofSpan(item.span);
}

function ofEmission({ kind, number, at, due, late: by, skipped }) {
  const pairs = [["emission", `${kind} ${number}`], ["delivered", seconds(at)]];
  if (due !== null) {
    pairs.push(["deadline", seconds(due)], by > 0 ? ["late by", seconds(by), true] : ["early by", seconds(due - at)]);
  }
  if (skipped > 0) pairs.push(["before it", `${skipped} more, without timestamps`]);
  return pairs;
}

function ofSpan(span) {
  const pairs = [[span.kind, span.name], ["process", span.process]];
  const add = (word, value) => value && pairs.push([word, value]);
  if (span.kind !== "walk") add("walk", span.walk && `${span.walk} (${ordinal(span.number + 1)} walk)`);
  add("start", seconds(Math.max(0, span.start)));
  add("duration", seconds(span.end - span.start));
  add("compute time", span.busy > 0 && seconds(span.busy));
  add("queue wait", span.waited > 0 && seconds(span.waited));
  add("calls", span.calls);
  add("per call", span.calls > 1 && span.busy > 0 && seconds(span.busy / span.calls));
  add("largest batch", span.batch);
  add("attempt", span.attempt > 1 && ordinal(span.attempt));
  add(span.kind === "walk" ? "partitions" : "details", span.text);
  add("request", span.rid);
  return pairs;
}

function ordinal(number) {
  const end = number % 100 > 10 && number % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][number % 10] ?? "th";
  return `${number}${end}`;
}
