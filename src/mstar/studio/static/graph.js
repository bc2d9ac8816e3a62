// Graph page: the walks of a model with running requests as moving dots, its workers, and a table of requests.
// The parts are in graph/.

import { api } from "./api.js";
import { COLORS } from "./graph/colors.js";
import { RequestList } from "./graph/request_list.js";
import { QueuePanel, WalkLinks, WalkPanel } from "./graph/panel.js";
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

function Graph({ graph, go }) {
  const colors = useMemo(() => new Map(graph.workers.map((name, at) => [name, at % COLORS])), [graph]);
  const animator = useAnimator(graph, colors);
  // Wide pictures first, in their order; then small ones, widest first, which share rows.
  const walks = useMemo(() => {
    const width = ({ picture }) => Math.min(picture.width, WIDE);
    return [...graph.walks].sort((a, b) => width(b) - width(a));
  }, [graph]);
  const titles = useMemo(() => {
    const entries = graph.walks.map(({ name, picture, calls }) => {
      const boxes = new Map(picture.boxes.map(({ id, title }) => [id, title]));
      return [name, calls.map((id) => boxes.get(id))];
    });
    return new Map(entries);
  }, [graph]);
  const one = (walk) =>
    html`<${WalkPanel} key=${walk.name} animator=${animator} walk=${walk} colors=${colors} go=${go} />`;
  return html`<div class="graph">
    <${ArrowMarkers} />
    <div class="walks"><${QueuePanel} animator=${animator} go=${go} />${walks.map(one)}</div>
    <aside>
      ${walks.length > 1 && html`<${WalkLinks} model=${graph.model} walks=${walks} />`}
      <${Workers} names=${graph.workers} colors=${colors} /><${Legend} walks=${graph.walks} />
    </aside>
    <${RequestList} model=${graph.model} boxes=${(walk, at) => titles.get(walk)?.[at]} />
  </div>`;
}

export default function GraphPage({ models, rest, go }) {
  const model = rest[0] ?? models[0]?.id;
  if (!model) return html`<p class="note">No models served.</p>`;
  const tabs = models.map(({ id }) => ({ id, label: id, href: `#/graph/${encodeURIComponent(id)}` }));
  return html`<div class="stack">
    <h1 class="sr">Graph of ${model}</h1>
    ${models.length > 1 && html`<${Tabs} tabs=${tabs} chosen=${model} label="Models" />`}
    <${GraphView} key=${model} model=${model} go=${go} />
  </div>`;
}

function GraphView({ model, go }) {
  const { graph, error, retry } = useGraph(model);
  if (error) return html`<${ErrorMessage} what=${`Loading the graph of ${model} failed`} error=${error} retry=${retry} />`;
  return graph ? html`<${Graph} graph=${graph} go=${go} />` : html`<${ProgressBar} text="Loading the graph…" />`;
}
