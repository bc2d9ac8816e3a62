// What a trace comes to: rows of bars for the waterfall, figures for tables, and the sentence on top. Nothing is drawn.

import { seconds } from "../components.js";

export const ROW = 20;
const HEAD = 26;

const SPECIAL = /^(front|conductor(-\d+)?)$/;
const ORDER = ["request", "queued", "attempt", "walk", "op", "transfer"];

/** Names of the workers of some traces, in the order of their colours. */
export function traceWorkers(...traces) {
  const workers = processes(...traces).filter((name) => !SPECIAL.test(name));
  return workers.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

function processes(...traces) {
  return [...new Set(traces.flatMap((trace) => trace.spans.map((span) => span.process)))];
}

/** For how long an op was ready before its first call began: its bar begins with that call. */
function waitedBefore(span) {
  if (span.kind !== "op") return 0;
  return Math.min(span.waited, Math.max(0, span.waited + span.busy - (span.end - span.start)));
}

/** Whether it is told when emissions were due. */
export function hasDeadlines(trace) {
  return trace.emissions.some((one) => one.due?.length);
}

/** How long all of it is. */
export function traceLength(trace) {
  return Math.max(trace.seconds, ...trace.spans.map((span) => span.end));
}

/**
 * Rows from top to bottom: `{y, height, head}` or `{y, height, label, items}`; `items`: all that can be looked at, in
 * that order; `height`: of all rows.
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
    const colour = workers.indexOf(process);
    const lanes = processLanes(trace, process);
    if (!lanes.length) continue;
    add({ head: process, colour }, HEAD);
    for (const lane of lanes) {
      packRows(lane.items).forEach((items, number) => add({ label: number ? "" : lane.label, colour, items }, ROW));
    }
  }
  rows.forEach((row, number) => row.items?.forEach((item) => Object.assign(item, { row: number, colour: row.colour })));
  return { rows, items: rows.flatMap((row) => row.items ?? []), height: y };
}

function processLanes(trace, process) {
  const lanes = new Map();
  for (const span of trace.spans) {
    if (span.process !== process) continue;
    const label = span.kind === "walk" ? "walks" : span.name;
    const key = `${ORDER.indexOf(span.kind)} ${label}`;
    if (!lanes.has(key)) lanes.set(key, { label, items: [] });
    lanes.get(key).items.push(toBar(span));
  }
  const sorted = [...lanes].sort(([a], [b]) => Number(a[0]) - Number(b[0])).map(([, lane]) => lane);
  if (process === "front") sorted.push(...trace.emissions.map(emissionLane));
  return sorted;
}

function toBar(span) {
  const start = Math.max(0, span.start); // clocks of two processes differ a little
  const before = waitedBefore(span);
  const key = [span.process, span.rid, span.kind, span.name, span.number, span.attempt, span.start].join(" ");
  return { key, span, start, end: Math.max(start, span.end), from: Math.max(0, start - before) };
}

/** The emissions of one kind, each with when it was due if its kind has a clock. */
export function emissionTimes(one) {
  const times = one.due ?? [];
  const told = (number, at, due) => ({ kind: one.kind, number, at, ...against(at, due) });
  const found = one.first.map((at, number) => told(number + 1, at, times[number]));
  if (one.count > found.length) {
    found.push({ ...told(one.count, one.last), skipped: one.count - found.length - 1 });
  }
  return found;
}

function against(at, due) {
  return Number.isFinite(due) ? { due, late: Math.max(0, at - due) } : { due: null, late: 0 };
}

function emissionLane(one) {
  const items = emissionTimes(one).map((emission) => {
    const from = Math.min(emission.at, emission.due ?? emission.at);
    return { key: `${emission.kind} ${emission.number}`, emission, start: emission.at, end: emission.at, from };
  });
  return { label: `${one.kind} (${one.count})`, items };
}

/** Bars that lie over one another get rows of their own. Emissions are ticks and share one. */
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

/** How a request ended, in words, with how that looks. */
export function requestStatus(request) {
  if (request.status === null) return { text: "running", look: "runs" };
  if (request.status === 499) return { text: "499 cancelled", look: "warn" };
  return { text: String(request.status), look: request.status < 400 ? "good" : "bad" };
}

/** "14 Text, 3 Audio". */
export function formatEmissions(request) {
  return request.emissions.map((one) => `${one.count} ${one.kind}`).join(", ") || "none";
}

/** What each op and transfer came to, in all its walks and attempts; the busiest first. */
export function totals(trace) {
  const found = new Map();
  for (const span of trace.spans) {
    const name = { op: span.name, transfer: `transfer ${span.process} ${span.name}`, queued: "queued" }[span.kind];
    if (!name) continue;
    const sums = { calls: 0, busy: 0, waited: 0, batch: 0 };
    if (!found.has(name)) found.set(name, { name, kind: span.kind, processes: new Set(), walks: new Set(), ...sums });
    const one = found.get(name);
    one.calls += span.calls;
    one.busy += span.kind === "queued" ? span.end - span.start : span.busy;
    one.waited += span.waited;
    one.batch = Math.max(one.batch, span.batch);
    one.processes.add(span.process);
    if (span.walk) one.walks.add(span.walk);
  }
  return [...found.values()].sort((a, b) => b.busy - a.busy);
}

/** Seconds in which something is known to have been done or waited for; what overlaps counts once. */
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

/** The emissions of a trace that came later than they were due. */
function late(trace) {
  return trace.emissions.flatMap(emissionTimes).filter((one) => one.late > 0);
}

/** Where the time went: `length` "1.83 s", `text` "queued 0.02, lm.step 1.10 in 34 calls, …", and what else to see. */
export function summary(trace) {
  const all = trace.seconds;
  const figure = (x) => (all >= 1 ? x.toFixed(2) : (x * 1000).toFixed(x < 0.01 ? 1 : 0));
  const counts = (x) => x >= all * 0.01 && Number(figure(x)) > 0;
  const rows = totals(trace);
  const ops = rows.filter((row) => row.kind === "op");
  const shown = ops.filter((row) => counts(row.busy)).slice(0, 4);
  const sum = (each, key) => each.reduce((so, row) => so + row[key], 0);
  const said = [];
  const say = (what, x) => counts(x) && said.push(`${what} ${figure(x)}`);
  say("queued", sum(rows.filter((row) => row.kind === "queued"), "busy"));
  for (const row of shown) {
    said.push(`${row.name} ${figure(row.busy)}${row.calls > 1 ? ` in ${row.calls} calls` : ""}`);
  }
  const others = ops.filter((row) => !shown.includes(row));
  say(others.length === 1 ? others[0].name : `${others.length} other ops`, sum(others, "busy"));
  say("waiting for batches", sum(ops, "waited"));
  say("transfers", sum(rows.filter((row) => row.kind === "transfer"), "busy"));
  say("outside of ops", all - covered(trace));
  const length = all >= 1 ? `${all.toFixed(2)} s` : `${figure(all)} ms`;
  return { length, text: said.join(", "), asides: asides(trace) };
}

/** What is worth a look beside where the time went; `bad` if something went wrong. */
function asides(trace) {
  const found = [];
  const first = trace.emissions.map((one) => [one.first[0], one.kind]).sort((a, b) => a[0] - b[0]);
  for (const [when, kind] of first) found.push({ text: `first ${kind} after ${seconds(when)}` });
  const attempts = trace.spans.filter((span) => span.kind === "attempt");
  const again = attempts.filter((span) => span.attempt > 1);
  if (again.length) {
    const why = [...new Set(again.map((span) => span.text).filter(Boolean))].join("; ");
    found.push({ text: `retried ${again.length}×${why ? `: ${why}` : ""}`, bad: true });
  }
  const lates = late(trace);
  if (lates.length) {
    const worst = Math.max(...lates.map((one) => one.late));
    const who = lates.length === 1 ? "an emission was" : `${lates.length} emissions were`;
    found.push({ text: `${who} late, the worst by ${seconds(worst)}`, bad: true });
  }
  return found;
}

/** All that is known of a bar or a tick, as [word, value] pairs; the first is its name. */
export function details(item) {
  return item.emission ? ofEmission(item.emission) : ofSpan(item.span);
}

function ofEmission({ kind, number, at, due, late: by, skipped }) {
  const told = [["emission", `${kind} ${number}`], ["delivered at", seconds(at)]];
  if (due !== null) {
    told.push(["due at", seconds(due)], by > 0 ? ["late by", seconds(by), true] : ["early by", seconds(due - at)]);
  }
  if (skipped > 0) told.push(["before it", `${skipped} more, times not kept`]);
  return told;
}

function ofSpan(span) {
  const told = [[span.kind, span.name], ["in", span.process]];
  const add = (word, value) => value && told.push([word, value]);
  if (span.kind !== "walk") add("walk", span.walk && `${span.walk} (${ordinal(span.number + 1)} walk)`);
  add("start", seconds(Math.max(0, span.start)));
  add("length", seconds(span.end - span.start));
  add("busy", span.busy > 0 && seconds(span.busy));
  add("waited", span.waited > 0 && seconds(span.waited));
  add("calls", span.calls);
  add("each call", span.calls > 1 && span.busy > 0 && seconds(span.busy / span.calls));
  add("largest batch", span.batch);
  add("attempt", span.attempt > 1 && ordinal(span.attempt));
  add(span.kind === "walk" ? "seats" : "why", span.text);
  add("request", span.rid);
  return told;
}

function ordinal(number) {
  const end = number % 100 > 10 && number % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][number % 10] ?? "th";
  return `${number}${end}`;
}
