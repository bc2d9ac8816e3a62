// The workers as cards in their colours: how each is, and how much it has to do.

import { useLive } from "../live.js";
import { ProgressBar, Meter, seconds } from "../components.js";
import { html } from "../vendor/preact.js";

/** Whether a worker can run something now. */
export const isRunning = ({ state }) => state === "up" || state === "draining";

const LOOKS = { up: "good", starting: "warn", draining: "warn", down: "bad" };

function Numbers({ worker }) {
  const { slack, waiting, running, requests } = worker;
  return html`<dl class="numbers">
    <div><dt>requests</dt><dd>${requests}</dd></div>
    <div><dt>waiting</dt><dd>${waiting}</dd></div>
    <div><dt>running</dt><dd>${running}</dd></div>
    <div><dt>slack</dt><dd>${slack === null ? "–" : seconds(slack)}</dd></div>
  </dl>`;
}

function Card({ worker, colour }) {
  const { name, incarnation, host, state, loading, utilization, pages } = worker;
  const isOff = !isRunning(worker);
  const where = [host, incarnation > 0 && `restarted ${incarnation}×`].filter(Boolean).join(", ");
  return html`<li class=${`card ${isOff ? "off" : `k${colour}`}`}>
    <div class="row"><h3>${name}</h3><span class=${`tag ${LOOKS[state] ?? ""}`}>${state}</span></div>
    ${where && html`<small>${where}</small>`}
    ${loading && html`<${ProgressBar} text=${`loads ${loading.part}`} done=${loading.done} total=${loading.total} />`}
    ${!isOff && html`<${Numbers} worker=${worker} />`}
    ${!isOff && utilization !== null && html`<${Meter} label="utilization" value=${utilization} look=${utilization > 0.9 ? "bad" : ""} />`}
    ${!isOff && pages && html`<${Meter} label="pages" value=${pages[0]} most=${pages[1]} text=${pages.join(" of ")} />`}
  </li>`;
}

/** `names`: those of the model, in the order of colours. */
export function Workers({ names, colours }) {
  const workers = useLive((state) => state.workers);
  const found = new Map(workers.map((worker) => [worker.name, worker]));
  const one = (name) =>
    found.has(name) && html`<${Card} key=${name} worker=${found.get(name)} colour=${colours.get(name)} />`;
  return html`<section class="worker-cards" aria-label="Workers"><h2>Workers</h2><ul>${names.map(one)}</ul></section>`;
}
