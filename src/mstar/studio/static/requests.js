// Requests page: recent requests of this API key, the trace of one as a waterfall, or two compared.
// `requests/trace_summary` computes the numbers; the other modules there draw tables and charts.

import { api } from "./api.js";
import { timeAgo, ProgressBar, Choice, Field, seconds, ErrorMessage } from "./components.js";
import { View } from "./requests/chart.js";
import { usePoll } from "./requests/poll.js";
import { formatEmissions, hasDeadlines, reasonText, requestStatus, summary, traceLength, traceWorkers } from "./requests/trace_summary.js";
import { Differences, Emissions, Spans, Table, Totals } from "./requests/tables.js";
import { detailsLink } from "./graph/links.js";
import { Legend, Waterfall, Zoom } from "./requests/waterfall.js";
import { html, useEffect, useMemo, useState } from "./vendor/preact.js";

const link = (...ids) => ["#/requests", ...ids.map(encodeURIComponent)].join("/");
const pathOf = (id, what) => `/v1/requests/${encodeURIComponent(id)}/${what}`;

function Find({ go }) {
  const find = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id").trim();
    if (id) go(link(id));
  };
  return html`<form class="find" onSubmit=${find}>
    <${Field} label="Find by id" hint="X-Request-Id of a response, also in the server log.">
      <input name="id" required autocomplete="off" spellcheck="false" />
    <//>
    <button class="button">Open</button>
  </form>`;
}

/** Fetch with the API key, which a link cannot send, then open in a new tab or save as `name`. */
async function downloadOrOpen(path, name) {
  const address = URL.createObjectURL(await (await api.raw(path)).blob());
  const anchor = Object.assign(document.createElement("a"), { href: address });
  if (name) anchor.download = name;
  else anchor.target = "_blank";
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

function Metrics() {
  const [error, fail] = useState(null);
  const open = (event) => {
    event.preventDefault();
    downloadOrOpen("/metrics").then(() => fail(null), fail);
  };
  return html`<p class="soft">Latency of all requests by endpoint: <a href="/metrics" onClick=${open}>metrics</a>,
      ${" "}<code>mstar_request_duration_seconds</code>.</p>
    <${ErrorMessage} what="Loading the metrics failed" error=${error} />`;
}

function Requests({ shown, selected, mark }) {
  const heads = ["Compare", "Id", "Status", "#Duration", "Model", "Endpoint", "Emissions", "Started"];
  const rows = shown.map((one) => {
    const isMarked = selected.includes(one.id);
    const box = html`<input type="checkbox" aria-label=${`Compare ${one.id}`} checked=${isMarked}
      disabled=${selected.length > 1 && !isMarked} onChange=${() => mark(one.id)} />`;
    const name = html`<a class="id" href=${link(one.id)} title=${one.id}>${one.id}</a>`;
    const rest = [one.model, one.endpoint, formatEmissions(one), timeAgo(one.started_at)];
    return {
      key: one.id,
      look: isMarked ? "selected" : undefined,
      cells: [box, name, html`<${Status} one=${one} /> <small>${reasonText(one)}</small>`, seconds(one.seconds), ...rest],
    };
  });
  return html`<${Table} label="Requests" heads=${heads} rows=${rows} />`;
}

function Status({ one }) {
  const { text, look } = requestStatus(one);
  return html`<span class="tag ${look}">${text}</span>`;
}

/** Why a request failed: the error that its client got, and the exception with its op, file and line. */
function Reason({ model, error }) {
  if (!error) return null;
  const op = error.op && html`<a href=${detailsLink(model, "op", error.op)}>${error.op}</a>`;
  const facts = [["Exception", error.type], ["File and line", error.location], ["Op", op], ["Walk", error.walk], ["Process", error.process]];
  const fact = ([name, value]) => value && html`<div key=${name}><dt>${name}</dt><dd><code>${value}</code></dd></div>`;
  return html`<section class="error stack" aria-label="Reason of the failure">
    ${error.message && html`<p><strong>Request failed:</strong> ${error.message}</p>`}
    <dl class="facts">${facts.map(fact)}</dl>
    ${error.location && html`<p class="soft">The log of the server has the traceback under the id of this request.</p>`}
  </section>`;
}

const STATES = [["", "all"], "running", "succeeded", "failed", "canceled"];
const AGES = [["", "any time"], ["60", "last minute"], ["300", "last 5 minutes"], ["900", "last 15 minutes"], ["3600", "last hour"]];

function Filters({ all, filter, choose }) {
  const pick = (label, key, options) => html`<${Choice} label=${label} value=${filter[key]} options=${options}
    choose=${(value) => choose({ ...filter, [key]: value })} />`;
  const values = (key) => [["", "all"], ...new Set(all.map((one) => one[key]))];
  return html`<div class="row filters">
    ${pick("Status", "state", STATES)} ${pick("Started", "age", AGES)}
    ${pick("Model", "model", values("model"))} ${pick("Endpoint", "endpoint", values("endpoint"))}
    <${Field} label="Text">
      <input type="search" value=${filter.text} placeholder="id, status, kind" autocomplete="off" spellcheck="false"
        onInput=${(event) => choose({ ...filter, text: event.target.value })} />
    <//>
  </div>`;
}

function passes(one, { state, age, model, endpoint, text }) {
  const texts = [one.id, one.model, one.endpoint, requestStatus(one).text, reasonText(one), formatEmissions(one)];
  const words = texts.join(" ").toLowerCase();
  const isSame = (!model || one.model === model) && (!endpoint || one.endpoint === endpoint);
  const isRecent = !age || Date.now() / 1000 - one.started_at <= Number(age);
  return isSame && isRecent && (!state || requestStatus(one).state === state) && text.toLowerCase().split(/\s+/).every((word) => words.includes(word));
}

function Compare({ selected, clear }) {
  const left = 2 - selected.length;
  const text = left ? `Select ${left === 2 ? "two requests" : "one more"} to compare.` : selected.join(" with ");
  return html`<div class="row">
    ${left
      ? html`<button type="button" class="button" disabled>Compare</button>`
      : html`<a class="button main" href=${link(...selected)}>Compare</a>`}
    <span class="soft" role="status">${text}</span>
    ${left < 2 && html`<button type="button" class="button quiet" onClick=${clear}>Clear selection</button>`}
  </div>`;
}

function List({ go }) {
  const ask = async (signal) => (await api.json("/v1/requests", { signal })).data;
  const { got, error, again } = usePoll(ask, () => 2, "");
  const [filter, choose] = useState({ state: "", age: "", model: "", endpoint: "", text: "" });
  const [selected, put] = useState([]);
  const mark = (id) => put((ids) => (ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id]));
  const shown = (got ?? []).filter((one) => passes(one, filter));
  const none = got?.length
    ? "No request matches the filter."
    : html`No requests with this API key yet. <a href="#/play">Send one</a>.`;
  return html`<section class="stack report">
    <h1>Requests</h1>
    <div class="panel row between"><${Find} go=${go} /><${Metrics} /></div>
    <div class="panel stack">
      <${Filters} all=${got ?? []} filter=${filter} choose=${choose} />
      <${Compare} selected=${selected} clear=${() => put([])} />
      <${ErrorMessage} what="Loading the requests failed" error=${error} retry=${again} />
      ${!got && !error && html`<${ProgressBar} text="Loading recent requests…" />`}
      ${shown.length > 0 && html`<${Requests} shown=${shown} selected=${selected} mark=${mark} />`}
      ${got && !shown.length && html`<p class="note">${none}</p>`}
    </div>
  </section>`;
}

// ---------------------------------------------------------------- traces
/** The trace of a request, polled every second while it runs. */
function useTrace(id) {
  const ask = (signal) => api.json(pathOf(id, "trace"), { signal });
  const pause = (trace, error) => (error?.status === 404 || (trace && trace.status !== null) ? null : 1);
  return { id, ...usePoll(ask, pause, id) };
}

/** A shared time range for some traces, and their workers. */
function useView(traces) {
  const view = useMemo(() => new View(), []);
  const names = traceWorkers(...traces).join(" ");
  const workers = useMemo(() => traceWorkers(...traces), [names]);
  useEffect(() => {
    if (traces.length) view.extend(Math.max(...traces.map(traceLength)));
  }, traces);
  return [view, workers];
}

function Actions({ trace, again }) {
  const [error, fail] = useState(null);
  const tried = (doing) => doing.then(() => fail(null), fail).then(again);
  const cancel = () => tried(api.json(pathOf(trace.id, "cancel"), { method: "POST" }));
  const file = `${trace.id.replace(/[^\w.-]+/g, "_")}.perfetto.json`;
  const save = () => tried(downloadOrOpen(`${pathOf(trace.id, "trace")}?format=chrome`, file));
  return html`<div class="row">
      ${trace.status === null &&
      html`<button type="button" class="button" onClick=${cancel}>Cancel request</button>`}
      <span class="soft">For ui.perfetto.dev:</span>
      <button type="button" class="button" onClick=${save}>Download trace</button>
    </div>
    <${ErrorMessage} error=${error} />`;
}

/** Where the time went, in one line. */
function Summary({ trace, name }) {
  const { length, text, asides } = summary(trace);
  const aside = (one) => html`<span key=${one.text} class=${one.bad ? "bad" : "soft"}>${one.text}</span>`;
  return html`<div class="summary">
    <p>${name && html`<span class="tag">${name}</span> `}<strong>${length}</strong>${text && `: ${text}`}</p>
    <p class="asides">${asides.map(aside)}</p>
  </div>`;
}

/** What the client sent and got, if the server captures text. */
function Captured({ captured }) {
  if (!captured) return null;
  const block = (label, { text, is_cut: isCut }) => html`<div class="stack">
    <h3>${label}</h3>
    <pre class="code captured" tabindex="0" role="region" aria-label=${label}>${text || "no text"}</pre>
    ${isCut && html`<p class="note">The rest was not kept.</p>`}
  </div>`;
  return html`<div class="panel"><div class="grid2">
    ${block("Prompt", captured.prompt)} ${block("Response", captured.response)}
  </div></div>`;
}

/** Frame of the trace pages: breadcrumb, errors and loading state. */
function TracePage({ traces, go, children }) {
  const missing = traces.filter((one) => one.error);
  const message = ({ id, error, again }) =>
    html`<${ErrorMessage} key=${id} what=${`Loading the trace of ${id} failed`} error=${error} retry=${again} />`;
  return html`<section class="stack report">
    <nav class="crumbs" aria-label="Breadcrumb">
      <a href="#/requests">Requests</a><span aria-hidden="true">/</span><h1>${traces.map((one) => one.id).join(" and ")}</h1>
    </nav>
    ${missing.map(message)}
    ${missing.some((one) => one.error.status === 404) && html`<div class="panel"><${Find} go=${go} /></div>`}
    ${traces.some((one) => !one.got && !one.error) && html`<${ProgressBar} text="Loading the trace…" />`}
    ${children}
  </section>`;
}

function RequestPage({ id, go }) {
  const result = useTrace(id);
  const { got: trace, again } = result;
  const [view, workers] = useView(trace ? [trace] : []);
  if (!trace) return html`<${TracePage} traces=${[result]} go=${go} />`;
  return html`<${TracePage} traces=${[result]} go=${go}>
    <div class="row between">
      <p class="row"><${Status} one=${trace} /><a href=${`#/models/${encodeURIComponent(trace.model)}`}>${trace.model}</a>
        <code>${trace.endpoint}</code><span class="soft">${timeAgo(trace.started_at)}</span></p>
      <${Actions} trace=${trace} again=${again} />
    </div>
    <${Reason} model=${trace.model} error=${trace.error} />
    <${Captured} captured=${trace.captured} />
    <${Summary} trace=${trace} />
    <div class="panel stack">
      <div class="row between"><${Zoom} view=${view} /><${Legend} isTimed=${hasDeadlines(trace)} /></div>
      <${Waterfall} trace=${trace} workers=${workers} view=${view} label=${`Waterfall of ${id}`} />
    </div>
    <div class="panel stack"><h2>Time breakdown</h2><${Totals} trace=${trace} /></div>
    <div class="panel stack"><h2>Emissions</h2><${Emissions} trace=${trace} /></div>
    <${Spans} trace=${trace} />
  <//>`;
}

function ComparePage({ ids, go }) {
  const results = [useTrace(ids[0]), useTrace(ids[1])];
  const traces = results.every((one) => one.got) ? results.map((one) => one.got) : [];
  const [view, workers] = useView(traces);
  if (!traces.length) return html`<${TracePage} traces=${results} go=${go} />`;
  const named = traces.map((trace, at) => ["AB"[at], trace]);
  const side = ([name, trace]) => html`<div class="stack" key=${name}>
    <h2><span class="tag">${name}</span> <a href=${link(trace.id)}>${trace.id}</a></h2>
    <${Waterfall} trace=${trace} workers=${workers} view=${view} label=${`Waterfall of ${name}, ${trace.id}`} />
  </div>`;
  return html`<${TracePage} traces=${results} go=${go}>
    ${named.map(([name, trace]) => html`<${Summary} key=${name} trace=${trace} name=${name} />`)}
    <div class="panel stack">
      <div class="row between"><${Zoom} view=${view} /><${Legend} isTimed=${traces.some(hasDeadlines)} /></div>
      ${named.map(side)}
    </div>
    <div class="panel stack"><h2>Durations</h2><${Differences} a=${traces[0]} b=${traces[1]} /></div>
    ${named.map(([name, trace]) => html`<${Spans} key=${name} trace=${trace} label=${`All spans of ${name} as a table`} />`)}
  <//>`;
}

export default function Page({ rest, go }) {
  const key = rest.join("\n");
  if (rest.length > 1) return html`<${ComparePage} key=${key} ids=${rest} go=${go} />`;
  return rest.length ? html`<${RequestPage} key=${key} id=${rest[0]} go=${go} />` : html`<${List} go=${go} />`;
}
