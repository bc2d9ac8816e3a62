// Models page: state and endpoints of each model, load and unload; and for one model its placement, the transfers
// between workers, and batching.

import { api } from "./api.js";
import { live, useLive } from "./live.js";
import { ProgressBar, bytes, Copy, Meter, seconds, ErrorMessage } from "./components.js";
import { detailsLink } from "./graph/links.js";
import { usePoll } from "./requests/poll.js";
import { Table } from "./requests/tables.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

const WINDOW_S = 10;
const LOOKS = { loaded: "good", loading: "runs" };

/** Playground panels whose name differs from the capability. */
const PANELS = { image: "images", video: "video", action: "robot", rollout: "world", embedding: "" };

const pathOf = (model, what) => `/v1/models/${encodeURIComponent(model)}/${what}`;
const linkTo = (page, ...parts) => [`#/${page}`, ...parts.map(encodeURIComponent)].join("/");
const plural = (count, one, more = `${one}s`) => `${count} ${count === 1 ? one : more}`;

/** The current models; before the first response, those that the app shell knows. */
function useModels(known) {
  const ask = async (signal) => (await api.json("/v1/models", { signal })).data;
  const pause = (models) => (models?.some((one) => one.state === "loading") ? 1 : 3);
  const { got, error, again } = usePoll(ask, pause, "");
  return { models: got ?? known, error, again };
}

function State({ model: { state = "loaded" } }) {
  return html`<span class="tag ${LOOKS[state] ?? ""}">${state}</span>`;
}

/** Loading progress of the named workers. */
function Loading({ names }) {
  const workers = useLive((state) => state.workers).filter((one) => one.loading && (!names || names.includes(one.name)));
  return workers.map(({ name, loading: { part, done, total } }) => {
    const label = `${name}: loading ${part || "components"}`;
    return html`<${Meter} key=${name} label=${label} value=${done} max=${total} text=${`${done} of ${total}`} />`;
  });
}

/** Load and unload buttons. Unload needs a confirmation. */
function Switch({ model: { id, state = "loaded" }, again }) {
  const [isConfirming, setConfirming] = useState(false);
  const [action, setAction] = useState("");
  const [error, setError] = useState(null);
  const first = useRef(null);
  const keep = () => {
    setConfirming(false);
    setTimeout(() => first.current?.focus()); // the button is rendered again by then
  };
  const act = async (verb) => {
    setConfirming(false);
    setAction(verb);
    await api.json(pathOf(id, verb), { method: "POST" }).then(() => setError(null), setError);
    setAction("");
    again();
  };
  const button = (text, look, call) => html`<button type="button" class=${look} ref=${first} disabled=${action}
    onClick=${call} aria-label=${`${text} ${id}`}>${text}</button>`;
  return html`<div class="stack">
    ${!isConfirming && state === "unloaded" && html`<div>${button("Load", "button main", () => act("load"))}</div>`}
    ${!isConfirming && state === "loaded" && html`<div>${button("Unload", "button", () => setConfirming(true))}</div>`}
    ${action && html`<span class="soft" role="status">${action === "load" ? "Loading…" : "Unloading…"}</span>`}
    ${isConfirming && html`<${Confirm} id=${id} yes=${() => act("unload")} no=${keep} />`}
    ${error?.code === "cannot_unload"
      ? html`<p class="error" role="alert"><strong>Cannot unload:</strong> ${error.message}</p>`
      : html`<${ErrorMessage} error=${error} />`}
  </div>`;
}

function Confirm({ id, yes, no }) {
  const safe = useRef(null);
  useEffect(() => safe.current.focus(), []);
  return html`<div class="confirm stack" role="group" aria-label=${`Unload ${id}?`}>
    <p><strong>Unload ${id}?</strong> Running requests finish first. Then its workers stop and free their memory. The next
      request loads it again, and waits until it is loaded.</p>
    <div class="row">
      <button type="button" class="button main" onClick=${yes}>Unload</button>
      <button type="button" class="button" ref=${safe} onClick=${no}>Cancel</button>
    </div>
  </div>`;
}

function Links({ model, hasPlan }) {
  const panel = model.capabilities.map((one) => PANELS[one] ?? one).find(Boolean);
  return html`<div class="row">
    <a href=${linkTo("graph", model.id)}>Graph</a>
    ${panel && html`<a href=${linkTo("play", panel, model.id)}>Playground</a>`}
    ${hasPlan && html`<a href=${linkTo("models", model.id)}>Placement and plan</a>`}
  </div>`;
}

function Card({ model, again }) {
  const { id } = model;
  // Without the graph the card shows less; the model's own page shows the error.
  const { got } = usePoll((signal) => api.json(pathOf(id, "graph"), { signal }), () => null, id);
  const hosts = useHosts();
  const on = new Set(got?.workers.map((name) => hosts.get(name))).size;
  const endpoint = (path) => html`<li key=${path}><code>${path}</code></li>`;
  return html`<article class="panel stack" aria-label=${id}>
    <div class="row between"><h2><a href=${linkTo("models", id)}>${id}</a></h2><${State} model=${model} /></div>
    <dl class="facts">
      <div><dt>Capabilities</dt><dd>${model.capabilities.join(", ") || "custom requests"}</dd></div>
      <div><dt>Workers</dt><dd>${got ? got.workers.join(", ") : "–"}${on > 1 && ` on ${on} hosts`}</dd></div>
    </dl>
    <ul class="endpoints" aria-label="Endpoints">${model.endpoints.map(endpoint)}</ul>
    ${model.state === "loading" && html`<${Loading} names=${got?.workers} />`}
    <${Links} model=${model} hasPlan />
    <${Switch} model=${model} again=${again} />
  </article>`;
}

function List({ known }) {
  const { models, error, again } = useModels(known);
  const sorted = [...models].sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
  return html`<section class="stack report">
    <h1>Models</h1>
    <${ErrorMessage} what="Loading the models failed" error=${error} retry=${again} />
    <div class="grid2">${sorted.map((model) => html`<${Card} key=${model.id} model=${model} again=${again} />`)}</div>
  </section>`;
}

// ---------------------------------------------------------------- one model
/** One-sentence summary: "2 workers on 1 host; 3 transfers, 1 of them in each iteration." */
export function planSummary({ workers, cut_edges: crossings }, hosts) {
  const many = crossings.length;
  const often = crossings.filter((one) => one.frequency !== "once").length;
  const far = crossings.filter((one) => crossesHosts(one, hosts)).length;
  const on = new Set(workers.map((name) => hosts.get(name))).size;
  const parts = [`${plural(workers.length, "worker")} on ${plural(on, "host")}`];
  const how = often < many ? `${often || "none"} of them in each iteration` : "in each iteration";
  parts.push(many ? `${plural(many, "transfer")}, ${how}` : "no transfers between workers");
  if (far) parts.push(`${far} between hosts`);
  return `${parts.join("; ")}.`;
}

function crossesHosts({ from, to }, hosts) {
  return from.some((one) => to.some((other) => hosts.get(one) !== hosts.get(other)));
}

function useHosts() {
  const workers = useLive((state) => state.workers);
  return useMemo(() => new Map(workers.map((one) => [one.name, one.host])), [workers]);
}

/** Recent transfers between workers by "FROM TO": count per second, and seconds spent per second. */
function useRates() {
  const [rates, setRates] = useState(new Map());
  useEffect(() => {
    let ticks = [];
    const end = live.on(({ t, transfers, full }) => {
      if (full) ticks = []; // the stream restarted: the interval before is unknown
      ticks = [...ticks.filter((one) => one.t > t - WINDOW_S), { t, transfers: full ? [] : transfers }];
    });
    const timer = setInterval(() => setRates(transferRates(ticks)), 1000);
    return () => {
      end();
      clearInterval(timer);
    };
  }, []);
  return rates;
}

/** A tick covers the time since the previous one, so the first only sets the start. */
export function transferRates([first, ...rest]) {
  const sums = new Map();
  for (const { from, to, count, seconds: spent } of rest.flatMap((tick) => tick.transfers)) {
    const one = sums.get(`${from} ${to}`) ?? { count: 0, spent: 0 };
    sums.set(`${from} ${to}`, { count: one.count + count, spent: one.spent + spent });
  }
  const past = rest.length ? Math.max(0.1, rest.at(-1).t - first.t) : 1;
  return new Map([...sums].map(([pair, { count, spent }]) => [pair, { rate: count / past, spent: spent / past }]));
}

/** Sum over all worker pairs of a cut edge. */
function transferStats({ from, to }, rates) {
  const pairs = from.flatMap((one) => to.map((other) => rates.get(`${one} ${other}`))).filter(Boolean);
  const [rate, spent] = ["rate", "spent"].map((key) => pairs.reduce((sum, one) => sum + one[key], 0));
  return rate ? [rate.toFixed(rate < 10 ? 1 : 0), seconds(spent / rate)] : ["–", "–"];
}

function Workers({ names, order, hosts }) {
  const one = (name) => html`<span key=${name} class=${`worker w${Math.max(0, order.indexOf(name)) % 8}`}
    title=${hosts.get(name) ? `on host ${hosts.get(name)}` : undefined}>${name}</span>`;
  return html`<span class="workers">${names.map(one)}</span>`;
}

function PlacementTable({ graph, hosts }) {
  const figures = new Map(graph.ops.map((one) => [one.op, one]));
  const row = ({ walk, seat, workers, ops }, op, at) => {
    const one = figures.get(op) ?? {};
    const means = [one.calls || "–", seconds(one.seconds), one.batch ? one.batch.toFixed(1) : "–", seconds(one.waited)];
    const on = html`<${Workers} names=${workers} order=${graph.workers} hosts=${hosts} />`;
    return {
      key: `${walk} ${seat} ${op}`,
      look: at < ops.length - 1 ? "more" : undefined,
      cells: [at ? "" : walk, at ? "" : seat, html`<a href=${detailsLink(graph.model, "op", op)}>${op}</a>`, on, ...means],
    };
  };
  const heads = ["Walk", "#Partition", "*Op", "Workers", "#Calls", "#Mean call", "#Mean batch size", "#Mean queue wait"];
  return html`<div class="panel stack">
    <h2>Placement</h2>
    <${Table} label="Placement" heads=${heads}
      rows=${graph.seats.flatMap((seat) => seat.ops.map((op, at) => row(seat, op, at)))} />
    <p class="note">Each request binds a partition to one of its workers. Calls and means cover all walks that call the op
      since its workers started. The time of a call is its share of its batch.</p>
  </div>`;
}

function Crossings({ graph, hosts }) {
  const rates = useRates();
  const side = (names) => html`<${Workers} names=${names} order=${graph.workers} hosts=${hosts} />`;
  const row = (one) => {
    const isFar = crossesHosts(one, hosts);
    const direction = html`${side(one.from)} → ${side(one.to)} ${isFar && html`<span class="tag warn">between hosts</span>`}`;
    const size = one.bytes === null ? "dynamic" : bytes(one.bytes);
    const what = [one.name, html`<code>${one.type}</code>`, one.kind, one.frequency, one.walk, size];
    return { look: isFar ? "far" : undefined, cells: [direction, ...what, ...transferStats(one, rates)] };
  };
  const heads = ["From → to", "*Value", "Type", "Kind", "Frequency", "Walk", "#Size", "#Transfers/s", "#Mean duration"];
  return html`<div class="panel stack">
    <h2>Transfers between workers</h2>
    ${graph.cut_edges.length
      ? html`<${Table} label="Transfers between workers" heads=${heads} rows=${graph.cut_edges.map(row)} />
          <p class="note">Measured over the last ${WINDOW_S} seconds per pair of workers: all values and models between the
            same two workers count together.</p>`
      : html`<p class="soft">None: each request runs on one worker.</p>`}
  </div>`;
}

function ModelPage({ id, known }) {
  const ask = (signal) => api.json(pathOf(id, "graph"), { signal });
  const { got: graph, error, again } = usePoll(ask, (_, failed) => (failed?.status === 404 ? null : 5), id);
  const { models, again: look } = useModels(known);
  const model = models.find((one) => one.id === id);
  const hosts = useHosts();
  return html`<section class="stack report">
    <nav class="crumbs" aria-label="Breadcrumb">
      <a href="#/models">Models</a><span aria-hidden="true">/</span><h1>${id}</h1>
      ${model && html`<${State} model=${model} />`}
    </nav>
    <${ErrorMessage} what="Loading the graph failed" error=${error} retry=${again} />
    ${!graph && !error && html`<${ProgressBar} text="Loading the plan…" />`}
    ${graph && html`<p class="summary">${planSummary(graph, hosts)}</p>`}
    ${model && html`<${Links} model=${model} /><${Switch} model=${model} again=${look} />`}
    ${model?.state === "loading" && html`<${Loading} names=${graph?.workers} />`}
    ${graph &&
    html`<${PlacementTable} graph=${graph} hosts=${hosts} /><${Crossings} graph=${graph} hosts=${hosts} />
      <div class="panel stack">
        <h2>Batching</h2>
        <ul class="batches">${graph.batches.map((line) => html`<li key=${line}>${line}</li>`)}</ul>
      </div>
      <details class="panel"><summary>Plan as text</summary><${Copy} text=${graph.text} label="Plan" /></details>`}
  </section>`;
}

export default function Models({ models, rest }) {
  if (!rest.length) return html`<${List} known=${models} />`;
  return html`<${ModelPage} key=${rest[0]} id=${rest[0]} known=${models} />`;
}
