// The live requests as a table: what the dots show, for the keyboard and for who cannot see them.

import { live } from "../live.js";
import { seconds } from "../components.js";
import { html, useEffect, useState } from "../vendor/preact.js";

const [ROWS, EVERY_MS] = [50, 500];
const HEADS = ["Request", "State", "Walk", "At", "Emitted", "Age"];

function Row({ request, t, boxes }) {
  const { rid, id, state, walk, at, attempt, emitted, since } = request;
  const where = at.map(([worker, call]) => `${boxes(walk, call) ?? "…"} on ${worker}`).join(", ");
  const out = Object.entries(emitted).map(([kind, count]) => `${count} ${kind}`).join(", ");
  return html`<tr key=${rid}>
    <td>${id ? html`<a href=${`#/requests/${encodeURIComponent(id)}`}>${id}</a>` : "another key"}</td>
    <td>${state}${attempt > 1 ? `, attempt ${attempt}` : ""}</td><td>${walk}</td><td>${where}</td><td>${out}</td>
    <td class="number">${seconds(Math.max(0, t - since))}</td>
  </tr>`;
}

/** `boxes(walk, at)`: the op of a call. */
export function List({ model, boxes }) {
  const [{ requests, t }, look] = useState(live.now);
  useEffect(() => {
    // Twice a second is as fast as anybody reads.
    const timer = setInterval(() => look(live.now()), EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const all = [...requests.values()].filter((one) => one.model === model).sort((a, b) => b.since - a.since);
  const left = all.length - ROWS;
  const row = (one) => html`<${Row} key=${one.rid} request=${one} t=${t} boxes=${boxes} />`;
  return html`<section class="panel stack live" aria-label="Live requests">
    <h2>Live requests</h2>
    ${all.length === 0 && html`<p class="note">None now. Send one from <a href="#/play">Play</a>, or with any client: it
      appears here as a dot that walks the graph.</p>`}
    ${all.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="Table of live requests">
      <table class="table">
        <thead><tr>${HEADS.map((text) => html`<th class=${text === "Age" ? "number" : ""}>${text}</th>`)}</tr></thead>
        <tbody>${all.slice(0, ROWS).map(row)}</tbody>
      </table>
    </div>`}
    ${left > 0 && html`<p class="note">and ${left} more, older ones.</p>`}
  </section>`;
}
