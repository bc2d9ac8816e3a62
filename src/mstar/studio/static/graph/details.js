// Dialogs with the figures of one op or one worker. The graph page loads this module when the first one is opened.

import { api } from "../api.js";
import { useLive } from "../live.js";
import { bytes, Dialog, ErrorMessage, seconds } from "../components.js";
import { usePoll } from "../requests/poll.js";
import { html, useRef } from "../vendor/preact.js";
import { useBusy } from "./busy.js";
import { detailsLink } from "./links.js";

const POLL_S = 2;

const percent = (part) => `${Math.round((part ?? 0) * 100)} %`;

function Facts({ facts }) {
  const one = ([name, value, note]) => html`<div key=${name}><dt>${name}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`;
  return html`<dl class="figures">${facts.filter(([, value]) => value !== null && value !== undefined).map(one)}</dl>`;
}

const links = (model, kind, names) =>
  names.map((name, at) => html`${at > 0 && ", "}<a key=${name} href=${detailsLink(model, kind, name)}>${name}</a>`);

/** CPU cores in use between the last two polls. Null: not known yet. */
function useCores(process) {
  const last = useRef({});
  const at = last.current;
  if (process && process.cpu_s !== at.cpu) {
    const now = performance.now() / 1000;
    const cores = at.name === process.worker && at.cpu !== null ? (process.cpu_s - at.cpu) / (now - at.now) : null;
    last.current = { name: process.worker, cpu: process.cpu_s, now, cores: cores === null || cores < 0 ? null : cores };
  }
  return last.current.cores ?? null;
}

function OpFacts({ graph, op, titles }) {
  const of = ({ model, walk, at }) => (model === graph.model ? titles(walk, at) : undefined);
  const busy = useBusy(of).get(op.op);
  const waiting = useLive(({ ops }) => ops.reduce((sum, one) => sum + (of(one) === op.op ? one.waiting : 0), 0));
  const walks = graph.seats.filter(({ ops }) => ops.includes(op.op)).map(({ walk }) => walk);
  return html`<${Facts} facts=${[
    ["Source", html`<code>${op.source}</code>`],
    ["Calls", op.calls, "since its workers started"],
    ["Time per call", seconds(op.seconds), "its share of the batch"],
    ["Mean batch size", op.batch ? op.batch.toFixed(1) : "–"],
    ["Mean queue wait", seconds(op.waited)],
    ["Waiting now", waiting],
    ["Busy", percent(busy), "of the last 10 s"],
    ["Workers", links(graph.model, "worker", op.workers)],
    ["Walks", [...new Set(walks)].join(", ")],
  ]} />`;
}

function WorkerFacts({ graph, process, cores }) {
  const worker = useLive(({ workers }) => workers.find(({ name }) => name === process.worker));
  const busy = useBusy((op) => op.worker).get(process.worker);
  const { state, host, restarts, requests, waiting, running, slack, utilization, pages, devices } = worker ?? {};
  const ops = graph.ops.filter(({ workers }) => workers.includes(process.worker)).map(({ op }) => op);
  const isShared = process.memory_bytes === null;
  return html`<${Facts} facts=${[
    ["State", worker ? state : "down"],
    ["Host", host || null],
    ["Restarts", restarts || null],
    ["Busy", percent(busy), "of the last 10 s, a batch was running"],
    ["Memory", isShared ? "–" : bytes(process.memory_bytes), isShared ? "runs in the process of the server" : "resident"],
    ["CPU", isShared ? null : cores === null ? "–" : `${cores.toFixed(1)} cores`, "in use"],
    ["Threads", process.threads],
    ["Requests", requests],
    ["Waiting calls", waiting],
    ["Running batches", running],
    ["Slack", slack === null || slack === undefined ? "–" : seconds(slack), "until the most urgent call is due"],
    ["Needed by streams", utilization === null || utilization === undefined ? null : percent(utilization), "of its capacity, to keep audio and video on time"],
    ["KV pages", pages ? pages.join(" of ") : null],
    ["Components", process.components.map((name) => (devices?.[name] ? `${name} on ${devices[name]}` : name)).join(", ")],
    ["Ops", links(graph.model, "op", ops)],
  ]} />`;
}

/** `kind`: "op" or "worker". */
export function Details({ model, kind, name, titles, close }) {
  const ask = (signal) => api.json(`/v1/models/${encodeURIComponent(model)}/graph`, { signal });
  const { got: graph, error, again } = usePoll(ask, () => POLL_S, model);
  const op = kind === "op" && graph?.ops.find((one) => one.op === name);
  const process = kind === "worker" && graph?.processes.find((one) => one.worker === name);
  const cores = useCores(process);
  return html`<${Dialog} title=${name} close=${close}>
    <${ErrorMessage} error=${error} retry=${again} />
    ${op && html`<${OpFacts} graph=${graph} op=${op} titles=${titles} />`}
    ${process && html`<${WorkerFacts} graph=${graph} process=${process} cores=${cores} />`}
    ${graph && !op && !process && html`<p class="note">${model} has no ${kind} of this name.</p>`}
    <button class="button" type="button" autofocus onClick=${close}>Close</button>
  <//>`;
}
