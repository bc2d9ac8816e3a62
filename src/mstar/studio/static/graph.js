// Graph page: the walks of a model with running requests as moving dots, its workers, and a table of requests.
// The parts are in graph/.

import { api } from "./api.js";
import { COLORS } from "./graph/colors.js";
import { RequestList } from "./graph/request_list.js";
import { QueuePanel, WalkLinks, WalkPanel } from "./graph/panel.js";
import { Zoom } from "./graph/zoom.js";
import { ArrowMarkers, edgeStyle, STYLES } from "./graph/picture.js";
import { DotAnimator } from "./graph/dot_animator.js";
import { Workers } from "./graph/workers.js";
import { live } from "./live.js";
import { ProgressBar, Tabs, ErrorMessage } from "./components.js";
import { html, useEffect, useMemo, useState } from "./vendor/preact.js";

const WIDE = 900;

function useGraph(model) {
  const [result, setResult] = useState({});
  const [tries, setTries] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    setResult({});
    api.json(`/v1/models/${encodeURIComponent(model)}/graph`, { signal: abort.signal }).then(
      (graph) => setResult({ graph }),
      (error) => abort.signal.aborted || setResult({ error }),
    );
    return () => abort.abort();
  }, [model, tries]);
  return { ...result, retry: () => setTries((count) => count + 1) };
}

/** The animator of a graph. It receives every tick directly, without rendering. */
function useAnimator(graph, colors) {
  const animator = useMemo(() => new DotAnimator(graph.model, colors), [graph]);
  useEffect(() => {
    const { t, phase, workers, queue, requests } = live.now();
    const initial = { t, phase, workers, queue, ops: [], streams: [], ended: [], full: true };
    if (t) animator.tick({ ...initial, requests: [...requests.values()] });
    const off = live.on((tick) => animator.tick(tick));
    const repaint = () => animator.repaint();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("mstar-theme", repaint);
    scheme.addEventListener("change", repaint);
    return () => {
      off();
      removeEventListener("mstar-theme", repaint);
      scheme.removeEventListener("change", repaint);
      animator.close();
    };
  }, [animator]);
  return animator;
}

function Legend({ walks }) {
  const edges = walks.flatMap(({ picture }) => picture.edges);
  const used = new Set(edges.map(edgeStyle));
  if (edges.some(({ crosses }) => crosses)) used.add("cross");
  const one = (style) => html`<li key=${style}>
    <svg class="picture" width="34" height="12" aria-hidden="true">
      ${style === "pipe" && html`<path class="e pipe" d="M2 6H26" />`}
      <path class=${`e ${style === "pipe" ? "flow" : style}`} d="M2 6H28" marker-end=${`url(#head-${style})`} />
    </svg>${STYLES[style]}</li>`;
  return html`<ul class="lines" aria-label="Edge types">
    ${Object.keys(STYLES).filter((style) => used.has(style)).map(one)}
  </ul>`;
}

function Graph({ graph, shown, go }) {
  const colors = useMemo(() => new Map(graph.workers.map((name, at) => [name, at % COLORS])), [graph]);
  const animator = useAnimator(graph, colors);
  const [zoom, setZoom] = useState(null);
  // Used walks first; of these, wide pictures in their order, then small ones, widest first, which share rows.
  const [walks, hasTraffic] = useMemo(() => {
    const rank = ({ picture, is_used: isUsed }) => Math.min(picture.width, WIDE) + (isUsed ? WIDE : 0);
    return [[...graph.walks].sort((a, b) => rank(b) - rank(a)), graph.walks.some((one) => one.is_used)];
  }, [graph]);
  const titles = useMemo(() => {
    const entries = graph.walks.map(({ name, picture, calls }) => {
      const boxes = new Map(picture.boxes.map(({ id, title }) => [id, title]));
      return [name, calls.map((id) => boxes.get(id))];
    });
    return new Map(entries);
  }, [graph]);
  const boxes = (walk, at) => titles.get(walk)?.[at];
  // Before the first traffic all walks are shown: none is more interesting than another.
  const one = (walk) => html`<${WalkPanel} key=${walk.name} animator=${animator} walk=${walk} colors=${colors} zoom=${zoom}
    isFolded=${hasTraffic && !walk.is_used} go=${go} />`;
  return html`<div class="graph">
    <${ArrowMarkers} />
    <div class="walks"><${QueuePanel} animator=${animator} go=${go} />${walks.map(one)}</div>
    <aside><div class="side">
      <${Zoom} zoom=${zoom} setZoom=${setZoom} />
      ${walks.length > 1 && html`<${WalkLinks} model=${graph.model} walks=${walks} />`}
      <${Workers} model=${graph.model} names=${graph.workers} colors=${colors} /><${Legend} walks=${graph.walks} />
    </div></aside>
    <${RequestList} model=${graph.model} boxes=${boxes} />
    ${shown.length === 2 && html`<${DetailsDialog} key=${shown.join(" ")} model=${graph.model} kind=${shown[0]} name=${shown[1]}
      titles=${boxes} close=${() => go(`#/graph/${encodeURIComponent(graph.model)}`)} />`}
  </div>`;
}

/** The dialog of an op or a worker, once its module is loaded. */
function DetailsDialog(about) {
  const [{ Details, error }, setResult] = useState({});
  useEffect(() => {
    import("./graph/details.js").then(setResult, (failed) => setResult({ error: failed }));
  }, []);
  if (error) return html`<${ErrorMessage} what="Loading the figures failed" error=${error} />`;
  return Details && html`<${Details} ...${about} />`;
}

export default function GraphPage({ models, rest, go }) {
  const model = rest[0] ?? models[0]?.id;
  if (!model) return html`<p class="note">No models served.</p>`;
  const tabs = models.map(({ id }) => ({ id, label: id, href: `#/graph/${encodeURIComponent(id)}` }));
  return html`<div class="stack">
    <h1 class="sr">Graph of ${model}</h1>
    ${models.length > 1 && html`<${Tabs} tabs=${tabs} chosen=${model} label="Models" />`}
    <${GraphView} key=${model} model=${model} shown=${rest.slice(1)} go=${go} />
  </div>`;
}

function GraphView({ model, shown, go }) {
  const { graph, error, retry } = useGraph(model);
  if (error) return html`<${ErrorMessage} what=${`Loading the graph of ${model} failed`} error=${error} retry=${retry} />`;
  return graph ? html`<${Graph} graph=${graph} shown=${shown} go=${go} />` : html`<${ProgressBar} text="Loading the graph…" />`;
}
