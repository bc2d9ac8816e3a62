// Table of running requests: the accessible counterpart of the dots.

import { live } from "../live.js";
import { seconds } from "../components.js";
import { html, useEffect, useState } from "../vendor/preact.js";

const MAX_ROWS = 50;
const REFRESH_MS = 500;
const HEADS = ["Request", "State", "Walk", "Op", "Outputs", "Age"];

function Row({ request, t, boxes }) {
  const { rid, id, state, walk, at, attempt, emitted, since } = request;
  const where = at.map(([worker, call]) => `${boxes(walk, call) ?? "…"} on ${worker}`).join(", ");
  const out = Object.entries(emitted).map(([kind, count]) => `${count} ${kind}`).join(", ");
  return html`<tr key=${rid}>
    <td>${id ? html`<a href=${`#/requests/${encodeURIComponent(id)}`}>${id}</a>` : "another API key"}</td>
    <td>${state}${attempt > 1 ? `, attempt ${attempt}` : ""}</td><td>${walk}</td><td>${where}</td><td>${out}</td>
    <td class="number">${seconds(Math.max(0, t - since))}</td>
  </tr>`;
}

/** `boxes(walk, at)`: the op of a call. */
export function RequestList({ model, boxes }) {
  const [{ requests, t }, look] = useState(live.now);
  useEffect(() => {
    // Twice a second is fast enough to read.
    const timer = setInterval(() => look(live.now()), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const all = [...requests.values()].filter((one) => one.model === model).sort((a, b) => b.since - a.since);
  const left = all.length - MAX_ROWS;
  const row = (one) => html`<${Row} key=${one.rid} request=${one} t=${t} boxes=${boxes} />`;
  return html`<section class="panel stack live" aria-label="Running requests">
    <h2>Running requests</h2>
    ${all.length === 0 && html`<p class="note">No running requests. Send one from the <a href="#/play">playground</a> or with any
      client: it appears as a dot in the graph.</p>`}
    ${all.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="Table of running requests">
      <table class="table">
        <thead><tr>${HEADS.map((text) => html`<th class=${text === "Age" ? "number" : ""}>${text}</th>`)}</tr></thead>
        <tbody>${all.slice(0, MAX_ROWS).map(row)}</tbody>
      </table>
    </div>`}
    ${left > 0 && html`<p class="note">${left} older requests not shown.</p>`}
  </section>`;
}
