// The live graph: a model's walks as pictures in which requests move as dots, its workers, and a list of what lives.
// What happens on a picture is in graph/; this page brings it together.

import { api } from "./api.js";
import { COLOURS } from "./graph/colours.js";
import { List } from "./graph/request_list.js";
import { Lane, WalkLinks, WalkPanel } from "./graph/panel.js";
import { ArrowMarkers, edgeStyle, STYLES } from "./graph/picture.js";
import { DotAnimator } from "./graph/dot_animator.js";
import { Workers } from "./graph/workers.js";
import { live } from "./live.js";
import { ProgressBar, Tabs, ErrorMessage } from "./components.js";
import { html, useEffect, useMemo, useState } from "./vendor/preact.js";

const WIDE = 900;

function useGraph(model) {
  const [got, put] = useState({});
  const [tries, again] = useState(0);
  useEffect(() => {
    const ended = new AbortController();
    put({});
    api.json(`/v1/models/${encodeURIComponent(model)}/graph`, { signal: ended.signal }).then(
      (graph) => put({ graph }),
      (error) => ended.signal.aborted || put({ error }),
    );
    return () => ended.abort();
  }, [model, tries]);
  return { ...got, retry: () => again((count) => count + 1) };
}

/** The stage of a graph: it hears every tick, outside of preact. */
function useStage(graph, colours) {
  const stage = useMemo(() => new DotAnimator(graph.model, colours), [graph]);
  useEffect(() => {
    const { t, phase, workers, queue, requests } = live.now();
    const told = { t, phase, workers, queue, ops: [], streams: [], ended: [], full: true };
    if (t) stage.tick({ ...told, requests: [...requests.values()] });
    const off = live.on((tick) => stage.tick(tick));
    const repaint = () => stage.repaint();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("mstar-theme", repaint);
    scheme.addEventListener("change", repaint);
    return () => {
      off();
      removeEventListener("mstar-theme", repaint);
      scheme.removeEventListener("change", repaint);
      stage.close();
    };
  }, [stage]);
  return stage;
}

function Legend({ walks }) {
  const edges = walks.flatMap(({ picture }) => picture.edges);
  const seen = new Set(edges.map(edgeStyle));
  if (edges.some(({ crosses }) => crosses)) seen.add("cross");
  const one = (style) => html`<li key=${style}>
    <svg class="picture" width="34" height="12" aria-hidden="true">
      ${style === "pipe" && html`<path class="e pipe" d="M2 6H26" />`}
      <path class=${`e ${style === "pipe" ? "flow" : style}`} d="M2 6H28" marker-end=${`url(#head-${style})`} />
    </svg>${STYLES[style]}</li>`;
  return html`<ul class="lines" aria-label="Kinds of lines">
    ${Object.keys(STYLES).filter((style) => seen.has(style)).map(one)}
  </ul>`;
}

function Graph({ graph, go }) {
  const colours = useMemo(() => new Map(graph.workers.map((name, at) => [name, at % COLOURS])), [graph]);
  const stage = useStage(graph, colours);
  // Wide pictures first, in their order; then small ones, the widest first, which share rows.
  const walks = useMemo(() => {
    const width = ({ picture }) => Math.min(picture.width, WIDE);
    return [...graph.walks].sort((a, b) => width(b) - width(a));
  }, [graph]);
  const titles = useMemo(() => {
    const by = graph.walks.map(({ name, picture, calls }) => {
      const boxes = new Map(picture.boxes.map(({ id, title }) => [id, title]));
      return [name, calls.map((id) => boxes.get(id))];
    });
    return new Map(by);
  }, [graph]);
  const one = (walk) =>
    html`<${WalkPanel} key=${walk.name} stage=${stage} walk=${walk} colours=${colours} go=${go} />`;
  return html`<div class="graph">
    <${ArrowMarkers} />
    <div class="walks"><${Lane} stage=${stage} go=${go} />${walks.map(one)}</div>
    <aside>
      ${walks.length > 1 && html`<${WalkLinks} model=${graph.model} walks=${walks} />`}
      <${Workers} names=${graph.workers} colours=${colours} /><${Legend} walks=${graph.walks} />
    </aside>
    <${List} model=${graph.model} boxes=${(walk, at) => titles.get(walk)?.[at]} />
  </div>`;
}

export default function GraphPage({ models, rest, go }) {
  const model = rest[0] ?? models[0]?.id;
  if (!model) return html`<p class="note">This server serves no model.</p>`;
  const tabs = models.map(({ id }) => ({ id, label: id, href: `#/graph/${encodeURIComponent(id)}` }));
  return html`<div class="stack">
    <h1 class="sr">Graph of ${model}</h1>
    ${models.length > 1 && html`<${Tabs} tabs=${tabs} chosen=${model} label="Models" />`}
    <${GraphView} key=${model} model=${model} go=${go} />
  </div>`;
}

function GraphView({ model, go }) {
  const { graph, error, retry } = useGraph(model);
  if (error) return html`<${ErrorMessage} what=${`The graph of ${model} could not be had`} error=${error} retry=${retry} />`;
  return graph ? html`<${Graph} graph=${graph} go=${go} />` : html`<${ProgressBar} text="Laying out the walks…" />`;
}
