// Worker cards: state, busy time and KV pages of each worker. Its name is a link to its other figures.

import { useLive } from "../live.js";
import { ProgressBar, Meter } from "../components.js";
import { html } from "../vendor/preact.js";
import { useBusy } from "./busy.js";
import { detailsLink } from "./links.js";

/** Whether a worker can run batches. */
export const isRunning = ({ state }) => state === "up" || state === "draining";

const LOOKS = { up: "good", starting: "warn", draining: "warn", down: "bad" };

function Numbers({ worker }) {
  const { waiting, running, requests } = worker;
  return html`<dl class="numbers">
    <div><dt>Requests</dt><dd>${requests}</dd></div>
    <div><dt>Waiting</dt><dd>${waiting}</dd></div>
    <div><dt>Running</dt><dd>${running}</dd></div>
  </dl>`;
}

function Card({ model, worker, color, busy }) {
  const { name, incarnation, host, state, loading, pages, devices } = worker;
  const isOff = !isRunning(worker);
  const used = [...new Set(Object.values(devices))].filter((device) => device !== "cpu");
  const where = [host, ...used, incarnation > 0 && `${incarnation} ${incarnation === 1 ? "restart" : "restarts"}`].filter(Boolean).join(", ");
  return html`<li class=${`card ${isOff ? "off" : `k${color}`}`}>
    <div class="row"><h3><a href=${detailsLink(model, "worker", name)}>${name}</a></h3><span class=${`tag ${LOOKS[state] ?? ""}`}>${state}</span></div>
    ${where && html`<small>${where}</small>`}
    ${loading && html`<${ProgressBar} text=${`loading ${loading.part}`} done=${loading.done} total=${loading.total} />`}
    ${!isOff && html`<${Numbers} worker=${worker} />`}
    ${!isOff && html`<${Meter} label="Busy" value=${busy} />`}
    ${!isOff && pages && html`<${Meter} label="KV pages" value=${pages[0]} max=${pages[1]} text=${pages.join(" of ")} />`}
  </li>`;
}

/** `names`: workers of the model, in color order. */
export function Workers({ model, names, colors }) {
  const workers = useLive((state) => state.workers);
  const byName = new Map(workers.map((worker) => [worker.name, worker]));
  const busy = useBusy((op) => op.worker);
  const one = (name) => byName.has(name) && html`<${Card} key=${name} model=${model} worker=${byName.get(name)}
    color=${colors.get(name)} busy=${busy.get(name) ?? 0} />`;
  return html`<section class="worker-cards" aria-label="Workers"><h2>Workers</h2><ul>${names.map(one)}</ul></section>`;
}
