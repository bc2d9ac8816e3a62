// Tables of a trace: time breakdown by op, emissions, comparison of two traces, and all spans as the accessible
// counterpart of the waterfall.

import { seconds } from "../components.js";
import { html, useState } from "../vendor/preact.js";
import { emissionTimes, totals } from "./trace_summary.js";

const some = (x, format = String) => (x ? format(x) : "–");

/** Columns with a # prefix are numeric; one with a * prefix is the row header. `rows`: `{key, look, cells}`. */
export function Table({ label, heads, rows }) {
  const look = (head) => (head[0] === "#" ? "number" : undefined);
  const head = (one, at) => html`<th scope="col" key=${at} class=${look(one)}>${one.replace(/^[#*]/, "")}</th>`;
  const cell = (value, at) =>
    heads[at][0] === "*"
      ? html`<th scope="row" key=${at}>${value}</th>`
      : html`<td key=${at} class=${look(heads[at])}>${value}</td>`;
  const row = (one, at) => html`<tr key=${one.key ?? at} class=${one.look}>${one.cells.map(cell)}</tr>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="table">
    <thead><tr>${heads.map(head)}</tr></thead><tbody>${rows.map(row)}</tbody>
  </table></div>`;
}

function Share({ part }) {
  const text = part > 0 && part < 0.005 ? "< 1 %" : `${Math.round(part * 100)} %`;
  return html`<span class="share">
    <span aria-hidden="true"><i style=${{ width: `${Math.min(1, part) * 100}%` }}></i></span>${text}
  </span>`;
}

export function Totals({ trace }) {
  const heads = ["*Op", "#Duration", "Share", "#Calls", "#Per call", "#Queue wait", "#Batch size", "Process", "Walks"];
  const rows = totals(trace).map((one) => ({
    key: one.name,
    cells: [
      one.name,
      seconds(one.busy),
      html`<${Share} part=${one.busy / trace.seconds} />`,
      some(one.calls),
      some(one.calls, (calls) => seconds(one.busy / calls)),
      some(one.waited, seconds),
      some(one.batch),
      [...one.processes].join(", "),
      [...one.walks].join(", "),
    ],
  }));
  if (rows.length) return html`<${Table} label="Time breakdown" heads=${heads} rows=${rows} />`;
  return html`<p class="note">No spans for this request: it ended too long ago, or its process has restarted
    since.</p>`;
}

export function Emissions({ trace }) {
  if (!trace.emissions.length) return html`<p class="soft">No emissions.</p>`;
  const heads = ["*Emission", "#Count", "#First", "#Last", "Deadline"];
  const against = (one) => {
    const lates = emissionTimes(one).filter((each) => each.late > 0);
    if (!lates.length) return one.due?.length ? "all on time" : "no deadline";
    const by = lates.map((each) => `${each.number}. by ${seconds(each.late)}`).join(", ");
    return html`<span class="bad">${lates.length} late: ${by}</span>`;
  };
  const rows = trace.emissions.map((one) => ({
    cells: [one.kind, one.count, seconds(one.first[0]), seconds(one.last), against(one)],
  }));
  return html`<${Table} label="Emissions" heads=${heads} rows=${rows} />`;
}

const TIMES = ["#Start", "#Duration", "#Compute time", "#Queue wait"];
const COLUMNS = ["Process", "Kind", "*Name", "Walk", ...TIMES, "#Calls", "#Batch size", "#Attempt", "Details"];

/** All spans. Rows are rendered only when the table is open. */
export function Spans({ trace, label = "All spans as a table" }) {
  const [isOpen, open] = useState(false);
  const row = (one) => {
    const times = [seconds(Math.max(0, one.start)), seconds(one.end - one.start), ...[one.busy, one.waited].map(timed)];
    const counts = [one.calls, one.batch, one.attempt].map((each) => some(each));
    return { cells: [one.process, one.kind, one.name, one.walk, ...times, ...counts, one.text] };
  };
  return html`<details class="panel" onToggle=${(event) => open(event.currentTarget.open)}>
    <summary>${label} (${trace.spans.length})</summary>
    ${isOpen && html`<${Table} label="All spans" heads=${COLUMNS} rows=${trace.spans.map(row)} />`}
  </details>`;
}

const timed = (x) => some(x, seconds);

/** Durations in A and B: the total, then ops by largest difference. */
export function differences(a, b) {
  const [inA, inB] = [a, b].map((trace) => new Map(totals(trace).map((one) => [one.name, one])));
  const both = (name, a, b) => ({ name, a, b, more: (b?.busy ?? 0) - (a?.busy ?? 0) });
  const rows = [...new Set([...inA.keys(), ...inB.keys()])].map((name) => both(name, inA.get(name), inB.get(name)));
  rows.sort((x, y) => Math.abs(y.more) - Math.abs(x.more));
  return [both("total", { busy: a.seconds }, { busy: b.seconds }), ...rows];
}

/** A difference above 10 % and 1 ms is colored. */
function Difference({ more, before }) {
  const isSmall = Math.abs(more) < 0.001 || Math.abs(more) < 0.1 * before;
  const text = more ? (more > 0 ? "+" : "−") + seconds(Math.abs(more)) : "0";
  return html`<span class=${isSmall ? "soft" : more > 0 ? "bad" : "good"}>${text}</span>`;
}

export function Differences({ a, b }) {
  const heads = ["*Op", "#Duration in A", "#in B", "#Difference", "#Calls in A", "#in B", "#Queue wait in A", "#in B"];
  const rows = differences(a, b).map((one) => ({
    key: one.name,
    cells: [
      one.name,
      ...[one.a, one.b].map((each) => seconds(each?.busy)),
      html`<${Difference} more=${one.more} before=${one.a?.busy ?? 0} />`,
      ...[one.a, one.b].map((each) => some(each?.calls)),
      ...[one.a, one.b].map((each) => timed(each?.waited)),
    ],
  }));
  return html`<${Table} label="Durations in both" heads=${heads} rows=${rows} />`;
}
