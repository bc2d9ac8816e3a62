// Overview page: what the server offers, and its figures over the last hour.

import { api } from "./api.js";
import { bytes, ErrorMessage, ProgressBar, seconds } from "./components.js";
import { useLive } from "./live.js";
import { LineChart } from "./overview/line_chart.js";
import { address, KINDS } from "./play.js";
import { usePoll } from "./requests/poll.js";
import { html } from "./vendor/preact.js";

const ENDPOINTS = {
  chat: "/v1/chat/completions",
  conversation: "/v1/realtime",
  speech: "/v1/audio/speech",
  transcription: "/v1/audio/transcriptions",
  images: "/v1/images/generations",
  video: "/v1/videos",
  robot: "/v1/actions",
  world: "/v1/worlds",
};

const WHAT = {
  chat: "Ask a question and read the answer as it is written.",
  conversation: "Speak with a model; interrupt it when you like.",
  speech: "Turn text into speech.",
  transcription: "Turn speech into text.",
  images: "Draw an image from a prompt.",
  video: "Make a video from a prompt.",
  robot: "Predict actions from observations.",
  world: "Predict what happens after an action.",
};

const rate = (value) => `${value >= 10 ? Math.round(value) : Number(value.toPrecision(2))} /s`;
const percent = (value) => `${Number((value * 100).toPrecision(3))} %`;
const number = (value) => String(Number(value.toPrecision(2)));

function TryIt({ models }) {
  const kinds = KINDS.filter(({ needs }) => models.some((one) => one.capabilities.includes(needs)));
  const card = ({ id, label, needs }) => {
    const names = models.filter((one) => one.capabilities.includes(needs)).map((one) => one.id);
    return html`<li key=${id} class="panel stack">
      <h3><a href=${address(id)}>${label}</a></h3>
      <p class="soft">${WHAT[id]}</p>
      <p><code>${ENDPOINTS[id]}</code></p>
      <p class="soft">${names.join(", ")}</p>
    </li>`;
  };
  if (!kinds.length) return html`<p class="note">The served models have no panel. Use <code>POST /v1/generate</code>.</p>`;
  return html`<ul class="try" aria-label="Try it">${kinds.map(card)}</ul>`;
}

function Now({ models }) {
  const running = useLive((state) => state.requests.size);
  const queue = useLive((state) => state.queue);
  const workers = useLive((state) => state.workers);
  const ready = models.filter((one) => one.ready !== false).length;
  const fact = (name, value) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`<dl class="now panel">
    ${fact("Running requests", running)} ${fact("Queued requests", queue)} ${fact("Workers", workers.length)}
    ${fact("Models ready", `${ready} of ${models.length}`)}
  </dl>`;
}

function Charts({ samples }) {
  const times = samples.at;
  const chart = (label, note, series, format, top) =>
    html`<${LineChart} key=${label} label=${label} note=${note} times=${times} series=${series} format=${format} top=${top} />`;
  return html`<div class="charts">
    ${chart("Responses", "per second", [{ values: samples.responses_per_s }], rate)}
    ${chart("Time to first output", "median and 99th percentile",
      [{ name: "p50", values: samples.ttfo_p50_s }, { name: "p99", values: samples.ttfo_p99_s }], seconds)}
    ${chart("On time", "emissions that met their deadline", [{ values: samples.on_time }], percent, 1)}
    ${chart("Errors", "responses that failed, per second", [{ values: samples.errors_per_s }], rate)}
    ${chart("Memory", "resident, all processes", [{ values: samples.memory_bytes }], bytes)}
    ${chart("CPU", "cores in use, all processes", [{ values: samples.cores }], number)}
    ${chart("Batch size", "mean calls in a batch", [{ values: samples.batch_size }], number)}
    ${chart("Running and queued", "requests",
      [{ name: "running", values: samples.running }, { name: "queued", values: samples.queued }], number)}
  </div>`;
}

function Costs({ rows }) {
  const cells = (one) => [one.role, number(one.cores), one.op_share === null ? "–" : percent(one.op_share),
    seconds(one.cpu_s_per_token), seconds(one.cpu_s_per_request)];
  const cell = (text, at) => html`<td key=${at} class=${at ? "number" : ""}>${text}</td>`;
  const head = (text, at) => html`<th key=${at} scope="col" class=${at > 1 ? "number" : ""}>${text}</th>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="CPU cost"><table class="table">
    <thead><tr>${["Process", "Role", "Cores", "In ops", "Per token", "Per request"].map(head)}</tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.process}><th scope="row">${one.process}</th>${cells(one).map(cell)}</tr>`)}</tbody>
  </table></div>`;
}

export default function Page({ models }) {
  const ask = (signal) => api.json("/v1/overview", { signal });
  const { got, error, again } = usePoll(ask, (last) => (last?.samples.at.length ? last.interval_s : 2), "");
  return html`<section class="stack overview">
    <h1>Overview</h1>
    <${Now} models=${models} />
    <h2>Try it</h2>
    <${TryIt} models=${models} />
    <h2>The last hour</h2>
    <${ErrorMessage} what="Loading the figures failed" error=${error} retry=${again} />
    ${!got && !error && html`<${ProgressBar} text="Loading the figures…" />`}
    ${got && !got.samples.at.length && html`<p class="note">The first figures appear ${got.interval_s} s after the start.</p>`}
    ${got?.samples.at.length > 0 && html`<${Charts} samples=${got.samples} />
      <h2>CPU cost in the last minute</h2>
      <${Costs} rows=${got.processes} />`}
  </section>`;
}
