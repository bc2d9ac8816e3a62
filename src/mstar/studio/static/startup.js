// Startup page: phase of the server, and loading progress of each worker.

import { useLive } from "./live.js";
import { ProgressBar } from "./components.js";
import { html } from "./vendor/preact.js";

const PHASES = { starting: "Starting", "warming up": "Warming up: first requests of each model" };

function Loading({ worker }) {
  const { name, host, state, loading } = worker;
  const at = host ? ` on ${host}` : "";
  const status = loading ? `loading ${loading.part} (${loading.done} of ${loading.total})` : state;
  const [done, total] = loading ? [loading.done, loading.total] : state === "up" ? [1, 1] : [undefined, undefined];
  return html`<li><${ProgressBar} text=${`${name}${at}: ${status}`} done=${done} total=${total} /></li>`;
}

export function StartupPage() {
  const phase = useLive((state) => state.phase);
  const workers = useLive((state) => state.workers);
  const count = phase.total ? `: ${phase.done} of ${phase.total}` : "";
  const text = `This page opens when the server is ready${count}`;
  return html`<section class="start panel stack" aria-label="Server startup">
    <h1>${PHASES[phase.name] ?? phase.name}</h1>
    <${ProgressBar} text=${text} done=${phase.done} total=${phase.total} />
    <ul class="stack">${workers.map((worker) => html`<${Loading} key=${worker.name} worker=${worker} />`)}</ul>
  </section>`;
}
