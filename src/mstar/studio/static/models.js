// The page of models: what each can do and where, loaded and unloaded; and of one its placement and plan: what runs
// where, what crosses between workers, what can share a batch.

import { api } from "./api.js";
import { live, useLive } from "./live.js";
import { ProgressBar, bytes, Copy, Meter, seconds, ErrorMessage } from "./components.js";
import { usePoll } from "./requests/poll.js";
import { Table } from "./requests/tables.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

const WINDOW_S = 10;
const LOOKS = { loaded: "good", loading: "runs" };

/** Panels of the playground that are not named as what a model has to be able to do for them. */
const PANELS = { image: "images", video: "video", action: "robot", rollout: "world", embedding: "" };

const pathOf = (model, what) => `/v1/models/${encodeURIComponent(model)}/${what}`;
const linkTo = (page, ...parts) => [`#/${page}`, ...parts.map(encodeURIComponent)].join("/");
const plural = (count, one, more = `${one}s`) => `${count} ${count === 1 ? one : more}`;

/** The models as they are now; what the frame knows of them until the server has said so. */
function useModels(known) {
  const ask = async (signal) => (await api.json("/v1/models", { signal })).data;
  const pause = (models) => (models?.some((one) => one.state === "loading") ? 1 : 3);
  const { got, error, again } = usePoll(ask, pause, "");
  return { models: got ?? known, error, again };
}

function State({ model: { state = "loaded" } }) {
  return html`<span class="tag ${LOOKS[state] ?? ""}">${state}</span>`;
}

/** Which workers load what now, of those named. */
function Loading({ names }) {
  const found = useLive((state) => state.workers).filter((one) => one.loading && (!names || names.includes(one.name)));
  return found.map(({ name, loading: { part, done, total } }) => {
    const label = `${name} loads ${part || "its parts"}`;
    return html`<${Meter} key=${name} label=${label} value=${done} most=${total} text=${`${done} of ${total}`} />`;
  });
}

/** Load or unload; the second asks first, and says what happens. */
function Switch({ model: { id, state = "loaded" }, again }) {
  const [isAsked, ask] = useState(false);
  const [doing, begin] = useState("");
  const [error, fail] = useState(null);
  const first = useRef(null);
  const keep = () => {
    ask(false);
    setTimeout(() => first.current?.focus()); // the button is back by then
  };
  const act = async (what) => {
    ask(false);
    begin(what);
    await api.json(pathOf(id, what), { method: "POST" }).then(() => fail(null), fail);
    begin("");
    again();
  };
  const button = (text, look, call) => html`<button type="button" class=${look} ref=${first} disabled=${doing}
    onClick=${call} aria-label=${`${text} ${id}`}>${text}</button>`;
  return html`<div class="stack">
    ${!isAsked && state === "unloaded" && html`<div>${button("Load", "button main", () => act("load"))}</div>`}
    ${!isAsked && state === "loaded" && html`<div>${button("Unload", "button", () => ask(true))}</div>`}
    ${doing && html`<span class="soft" role="status">It is asked to ${doing}…</span>`}
    ${isAsked && html`<${Confirm} id=${id} yes=${() => act("unload")} no=${keep} />`}
    ${error?.code === "cannot_unload"
      ? html`<p class="error" role="alert"><strong>It cannot be unloaded:</strong> ${error.message}</p>`
      : html`<${ErrorMessage} error=${error} />`}
  </div>`;
}

function Confirm({ id, yes, no }) {
  const safe = useRef(null);
  useEffect(() => safe.current.focus(), []);
  return html`<div class="confirm stack" role="group" aria-label=${`Unload ${id}?`}>
    <p><strong>Unload ${id}?</strong> What runs is finished first. Then its workers end, and their memory is free. The next
      request for it loads it again, and waits until it is loaded.</p>
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
  // Without the graph the card says less; the model's own page tells why it is missing.
  const { got } = usePoll((signal) => api.json(pathOf(id, "graph"), { signal }), () => null, id);
  const hosts = useHosts();
  const on = new Set(got?.workers.map((name) => hosts.get(name))).size;
  const endpoint = (path) => html`<li key=${path}><code>${path}</code></li>`;
  return html`<article class="panel stack" aria-label=${id}>
    <div class="row between"><h2><a href=${linkTo("models", id)}>${id}</a></h2><${State} model=${model} /></div>
    <dl class="facts">
      <div><dt>capabilities</dt><dd>${model.capabilities.join(", ") || "what its route takes"}</dd></div>
      <div><dt>workers</dt><dd>${got ? got.workers.join(", ") : "–"}${on > 1 && ` on ${on} hosts`}</dd></div>
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
    <${ErrorMessage} what="The models could not be read" error=${error} retry=${again} />
    <div class="grid2">${sorted.map((model) => html`<${Card} key=${model.id} model=${model} again=${again} />`)}</div>
  </section>`;
}

// ---------------------------------------------------------------- one model
/** The whole in a sentence: "2 workers on 1 host; 3 values cross, 1 of them in each iteration." */
export function planSummary({ workers, cut_edges: crossings }, hosts) {
  const many = crossings.length;
  const often = crossings.filter((one) => one.frequency !== "once").length;
  const far = crossings.filter((one) => crossesHosts(one, hosts)).length;
  const on = new Set(workers.map((name) => hosts.get(name))).size;
  const parts = [`${plural(workers.length, "worker")} on ${plural(on, "host")}`];
  const how = often < many ? `${often || "none"} of them in each iteration` : "in each iteration";
  parts.push(many ? `${plural(many, "value crosses", "values cross")}, ${how}` : "nothing crosses between workers");
  if (far) parts.push(`${plural(far, "goes", "go")} from host to host`);
  return `${parts.join("; ")}.`;
}

function crossesHosts({ from, to }, hosts) {
  return from.some((one) => to.some((other) => hosts.get(one) !== hosts.get(other)));
}

function useHosts() {
  const workers = useLive((state) => state.workers);
  return useMemo(() => new Map(workers.map((one) => [one.name, one.host])), [workers]);
}

/** What went between workers of late: by "FROM TO", transfers a second and seconds of each. */
function useRates() {
  const [rates, tell] = useState(new Map());
  useEffect(() => {
    let ticks = [];
    const end = live.on(({ t, transfers, full }) => {
      if (full) ticks = []; // the stream began anew: what was in between is not known
      ticks = [...ticks.filter((one) => one.t > t - WINDOW_S), { t, transfers: full ? [] : transfers }];
    });
    const timer = setInterval(() => tell(transferRates(ticks)), 1000);
    return () => {
      end();
      clearInterval(timer);
    };
  }, []);
  return rates;
}

/** A tick tells what was since the one before it, so the first says only when it began. */
export function transferRates([first, ...rest]) {
  const sums = new Map();
  for (const { from, to, count, seconds: spent } of rest.flatMap((tick) => tick.transfers)) {
    const one = sums.get(`${from} ${to}`) ?? { count: 0, spent: 0 };
    sums.set(`${from} ${to}`, { count: one.count + count, spent: one.spent + spent });
  }
  const past = rest.length ? Math.max(0.1, rest.at(-1).t - first.t) : 1;
  return new Map([...sums].map(([pair, { count, spent }]) => [pair, { rate: count / past, spent: spent / past }]));
}

/** All pairs of a crossing together: it may have several workers on both sides. */
function transferStats({ from, to }, rates) {
  const found = from.flatMap((one) => to.map((other) => rates.get(`${one} ${other}`))).filter(Boolean);
  const [rate, spent] = ["rate", "spent"].map((key) => found.reduce((sum, one) => sum + one[key], 0));
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
      cells: [at ? "" : walk, at ? "" : seat, op, on, ...means],
    };
  };
  const heads = ["Walk", "#Seat", "*Op", "Workers", "#Calls", "#Mean call", "#Mean batch", "#Mean wait"];
  return html`<div class="panel stack">
    <h2>Placement</h2>
    <${Table} label="Placement" heads=${heads}
      rows=${graph.seats.flatMap((seat) => seat.ops.map((op, at) => row(seat, op, at)))} />
    <p class="note">A request binds each seat to one of its workers. Calls and means are of all walks that call the op,
      since its workers began; a call's time is its share of its batch's.</p>
  </div>`;
}

function Crossings({ graph, hosts }) {
  const rates = useRates();
  const side = (names) => html`<${Workers} names=${names} order=${graph.workers} hosts=${hosts} />`;
  const row = (one) => {
    const isFar = crossesHosts(one, hosts);
    const way = html`${side(one.from)} → ${side(one.to)} ${isFar && html`<span class="tag warn">between hosts</span>`}`;
    const size = one.bytes === null ? "known when it runs" : bytes(one.bytes);
    const what = [one.name, html`<code>${one.type}</code>`, one.kind, one.frequency, one.walk, size];
    return { look: isFar ? "far" : undefined, cells: [way, ...what, ...transferStats(one, rates)] };
  };
  const heads = ["From → to", "*What", "Type", "Kind", "Frequency", "Walk", "#Size", "#Transfers/s", "#Each"];
  return html`<div class="panel stack">
    <h2>Transfers between workers</h2>
    ${graph.cut_edges.length
      ? html`<${Table} label="Transfers between workers" heads=${heads} rows=${graph.cut_edges.map(row)} />
          <p class="note">Transfers are measured over the last ${WINDOW_S} seconds, by who sends to whom: all values between
            the same workers, of all models, are counted together.</p>`
      : html`<p class="soft">Nothing: everything of a request is on one worker.</p>`}
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
    <${ErrorMessage} what="Its graph could not be read" error=${error} retry=${again} />
    ${!graph && !error && html`<${ProgressBar} text="Asking for its plan…" />`}
    ${graph && html`<p class="summary">${planSummary(graph, hosts)}</p>`}
    ${model && html`<${Links} model=${model} /><${Switch} model=${model} again=${look} />`}
    ${model?.state === "loading" && html`<${Loading} names=${graph?.workers} />`}
    ${graph &&
    html`<${PlacementTable} graph=${graph} hosts=${hosts} /><${Crossings} graph=${graph} hosts=${hosts} />
      <div class="panel stack">
        <h2>Batching</h2>
        <ul class="batches">${graph.batches.map((line) => html`<li key=${line}>${line}</li>`)}</ul>
      </div>
      <details class="panel"><summary>The plan as text</summary><${Copy} text=${graph.text} label="The plan" /></details>`}
  </section>`;
}

export default function Models({ models, rest }) {
  if (!rest.length) return html`<${List} known=${models} />`;
  return html`<${ModelPage} key=${rest[0]} id=${rest[0]} known=${models} />`;
}
