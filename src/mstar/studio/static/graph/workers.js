// Worker cards: state, load and memory of each worker.

import { useLive } from "../live.js";
import { ProgressBar, Meter, seconds } from "../components.js";
import { html } from "../vendor/preact.js";

/** Whether a worker can run batches. */
export const isRunning = ({ state }) => state === "up" || state === "draining";

const LOOKS = { up: "good", starting: "warn", draining: "warn", down: "bad" };

function Numbers({ worker }) {
  const { slack, waiting, running, requests } = worker;
  return html`<dl class="numbers">
    <div><dt>Requests</dt><dd>${requests}</dd></div>
    <div><dt>Waiting</dt><dd>${waiting}</dd></div>
    <div><dt>Running</dt><dd>${running}</dd></div>
    <div><dt>Slack</dt><dd>${slack === null ? "–" : seconds(slack)}</dd></div>
  </dl>`;
}

function Card({ worker, color }) {
  const { name, incarnation, host, state, loading, utilization, pages } = worker;
  const isOff = !isRunning(worker);
  const where = [host, incarnation > 0 && `${incarnation} ${incarnation === 1 ? "restart" : "restarts"}`].filter(Boolean).join(", ");
  return html`<li class=${`card ${isOff ? "off" : `k${color}`}`}>
    <div class="row"><h3>${name}</h3><span class=${`tag ${LOOKS[state] ?? ""}`}>${state}</span></div>
    ${where && html`<small>${where}</small>`}
    ${loading && html`<${ProgressBar} text=${`loading ${loading.part}`} done=${loading.done} total=${loading.total} />`}
    ${!isOff && html`<${Numbers} worker=${worker} />`}
    ${!isOff && utilization !== null && html`<${Meter} label="Utilization" value=${utilization} look=${utilization > 0.9 ? "bad" : ""} />`}
    ${!isOff && pages && html`<${Meter} label="KV pages" value=${pages[0]} max=${pages[1]} text=${pages.join(" of ")} />`}
  </li>`;
}

/** `names`: workers of the model, in color order. */
export function Workers({ names, colors }) {
  const workers = useLive((state) => state.workers);
  const byName = new Map(workers.map((worker) => [worker.name, worker]));
  const one = (name) =>
    byName.has(name) && html`<${Card} key=${name} worker=${byName.get(name)} color=${colors.get(name)} />`;
  return html`<section class="worker-cards" aria-label="Workers"><h2>Workers</h2><ul>${names.map(one)}</ul></section>`;
}
