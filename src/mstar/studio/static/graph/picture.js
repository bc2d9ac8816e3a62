// SVG picture of a walk, from the JSON of `mstar draw`, in the style of mstar/draw/svg.py.
// It draws the static parts. activity_overlay.js and dot_layer.js add halos, badges and dots.

import { html } from "../vendor/preact.js";
import { detailsLink } from "./links.js";

const [TITLE, NOTE] = [13, 10];
const [EDGE, GUTTER] = [12, 26];
const LETTERS = { 2: "L", 4: "Q", 6: "C" };
const HEADS = ["value", "carry", "pipe", "cross", "extends", "views"];
const [BADGE, LETTER] = [30, 6];
export const BAR = 56;
export const STYLES = {
  value: "value",
  carry: "carried to the next iteration",
  extends: "state, extended",
  views: "state, read-only",
  pipe: "stream",
  cross: "between workers",
};

/** Bounding box of a picture without its legend and title, with a gutter at the left for waiting dots. */
export function bounds({ boxes, frames, edges }) {
  const xs = [];
  const ys = [];
  for (const { x, y, w, h } of [...boxes, ...frames]) {
    xs.push(x, x + w);
    ys.push(y, y + h);
  }
  for (const { path, label, label_x: x, label_y: y } of edges) {
    for (const step of path) step.forEach((number, at) => (at % 2 ? ys : xs).push(number));
    if (label) {
      xs.push(x + LETTER * label.length);
      ys.push(y);
    }
  }
  const [left, top] = [Math.min(...xs) - GUTTER, Math.min(...ys) - EDGE];
  return { left, top, width: Math.max(...xs) + EDGE - left, height: Math.max(...ys) + 2 * EDGE - top };
}

export const edgeStyle = (edge) => (edge.is_back && edge.style === "value" ? "carry" : edge.style);

/** Arrow markers, shared by all pictures of a page. */
export function ArrowMarkers() {
  const shape = (name) =>
    name === "extends" || name === "views"
      ? html`<circle cx="4" cy="4" r="3" class=${`h-${name}`} />`
      : html`<path d="M0 0L8 4L0 8z" class=${`h-${name}`} />`;
  const one = (name) => html`<marker id=${`head-${name}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"
    markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">${shape(name)}</marker>`;
  return html`<svg class="heads picture" width="0" height="0" aria-hidden="true"><defs>${HEADS.map(one)}</defs></svg>`;
}

function Frame({ frame, depth }) {
  const { kind, x, y, w, h, caption, caption_x: left } = frame;
  const look = `f${depth % 2}`;
  // Parallel bodies: a second sheet behind the first.
  const behind = kind === "each" && html`<rect class=${look} rx="10" x=${x + 5} y=${y + 5} width=${w} height=${h} />`;
  return html`${behind}<rect class=${look} rx="10" x=${x} y=${y} width=${w} height=${h} />
    <text class="c" x=${left} y=${y + 18}>${caption}</text>`;
}

function pathText([first, ...rest]) {
  return `M${first.join(" ")}${rest.map((step) => LETTERS[step.length] + step.join(" ")).join("")}`;
}

function Edge({ edge, at }) {
  const style = edgeStyle(edge);
  const is = { pipe: style === "pipe", crossing: edge.crosses ? " cross" : "" };
  const path = pathText(edge.path);
  const head = edge.crosses && (is.pipe || style === "value" || style === "carry") ? "cross" : style;
  const about = [edge.value, edge.type].filter(Boolean).join(": ");
  const { label, label_x: x, label_y: y } = edge;
  const bar = x + LETTER * label.length + 8;
  return html`
    ${is.pipe && html`<path class=${`e pipe${edge.crosses ? " warm" : ""}`} d=${path} />`}
    <path class=${`e ${is.pipe ? "flow" : style}${is.crossing}`} d=${path} data-edge=${at}
      marker-end=${edge.has_arrow ? `url(#head-${head})` : undefined}><title>${about}</title></path>
    ${label && html`<text class=${is.pipe ? "l lp" : "l"} x=${x} y=${y}>${label}</text>`}
    ${label && is.pipe && html`<g data-stream=${edge.value} class="fill" visibility="hidden">
      <rect class="fill-all" x=${bar} y=${y - 6} width=${BAR} height="5" rx="2.5" />
      <rect class="fill-now" x=${bar} y=${y - 6} width="0" height="5" rx="2.5" />
      <text class="l lp" x=${bar + BAR + 5} y=${y}></text></g>`}`;
}

function Outline({ box, tint }) {
  const { x, y, w, h, shape } = box;
  if (shape === "state") {
    const side = `M${x} ${y + 6}V${y + h - 6}A${w / 2} 6 0 0 0 ${x + w} ${y + h - 6}V${y + 6}`;
    const lid = `A${w / 2} 6 0 0 0 ${x} ${y + 6}A${w / 2} 6 0 0 0 ${x + w} ${y + 6}`;
    return html`<path class="store" d=${side + lid} />`;
  }
  if (shape === "emission" || shape === "output") {
    const nose = Math.min(12, Math.floor(h / 2));
    const flag = `M${x} ${y}H${x + w - nose}L${x + w} ${y + Math.floor(h / 2)}L${x + w - nose} ${y + h}H${x}z`;
    return html`<path class="emit round" stroke-width="2" d=${flag} />`;
  }
  const place = { x, y, width: w, height: h };
  if (shape === "op") return html`<rect class=${`op ${tint}`} ...${place} rx="6" stroke-width="1.4" />`;
  if (shape === "get") return html`<rect class="box" ...${place} rx="4" stroke-dasharray="3 3" />`;
  return html`<rect class="box" ...${place} rx=${Math.min(Math.floor(h / 2), 13)} />`;
}

/** Lines of text in a box with their font sizes. The component of an op is a small line above it. */
function linesOf({ shape, title, note }) {
  const dot = shape === "op" ? title.lastIndexOf(".") : -1;
  const lines = [[title.slice(0, Math.max(dot, 0)), NOTE], [title.slice(dot + 1), TITLE], [note, NOTE]];
  return lines.filter(([text]) => text);
}

function BoxLabel({ box }) {
  const flag = box.shape === "emission" || box.shape === "output";
  const x = box.x + Math.floor(box.w / 2) - (flag ? 4 : 0);
  const lines = linesOf(box);
  const tall = lines.reduce((sum, [, size]) => sum + size + 4, 0);
  let y = box.y + Math.floor(box.h / 2) + (box.shape === "state" ? 4 : 0) - Math.floor(tall / 2);
  return lines.map(([text, size]) => {
    y += size + 4;
    const look = size === TITLE ? (box.shape === "op" ? "t b" : "t") : "n";
    return html`<text class=${`${look} m${flag ? " emit-t" : ""}`} x=${x} y=${y - 4}>${text}</text>`;
  });
}

/** Strip with the color of each worker of an op, to match the rings of dots. */
function WorkerStrip({ box, colors }) {
  const step = (box.w - 12) / box.workers.length;
  return box.workers.map(
    (name, at) => html`<rect class=${`worker k${colors.get(name)}`} data-worker=${name} key=${name}
      x=${box.x + 6 + at * step + 1} y=${box.y + 3} width=${step - 2} height="3" rx="1.5" />`,
  );
}

function Op({ box, colors, model }) {
  const tint = `k${colors.get(box.workers[0]) ?? 0}`;
  const { x, y, w, h } = box;
  return html`<a data-box=${box.id} href=${detailsLink(model, "op", box.title)} aria-label=${`op ${box.title}`}>
    <rect class=${`halo ${tint}`} x=${x - 2} y=${y - 2} width=${w + 4} height=${h + 4} rx="8" visibility="hidden" />
    <${Outline} box=${box} tint=${tint} /><${BoxLabel} box=${box} />
    ${box.workers.length > 1 && html`<${WorkerStrip} box=${box} colors=${colors} />`}
    <g class="badge" visibility="hidden">
      <rect x=${x + w - BADGE + 10} y=${y - 9} width=${BADGE} height="16" rx="8" />
      <text x=${x + w - BADGE / 2 + 10} y=${y + 3}></text></g>
    <g class="wait" visibility="hidden">
      <rect x=${x - 11} y=${y + h / 2 - 8} width="20" height="16" rx="8" />
      <text x=${x - 1} y=${y + h / 2 + 4}></text></g>
  </a>`;
}

function Box({ box, colors, model }) {
  if (box.shape === "op") return html`<${Op} box=${box} colors=${colors} model=${model} />`;
  return html`<g><${Outline} box=${box} /><${BoxLabel} box=${box} /></g>`;
}

function described({ boxes, frames }) {
  const ops = [...new Set(boxes.filter(({ shape }) => shape === "op").map(({ title }) => title))].join(", ");
  return `Ops: ${ops}.${frames.length ? ` Regions: ${frames.map(({ caption }) => caption).join("; ")}.` : ""}`;
}

/** `colors`: color index by worker. Ops are links to their figures. */
export function Picture({ model, name, picture, room, colors }) {
  const depths = new Map([["", -1]]);
  for (const frame of picture.frames) depths.set(frame.id, depths.get(frame.frame) + 1);
  // Streams are drawn first, edges between workers last.
  const depth = (edge) => (edge.style !== "pipe") * 2 + edge.crosses;
  const edges = picture.edges.map((edge, at) => ({ edge, at })).sort((a, b) => depth(a.edge) - depth(b.edge));
  return html`<svg class="picture" viewBox=${`${room.left} ${room.top} ${room.width} ${room.height}`} role="group"
    aria-label=${`Walk ${name}. ${described(picture)}`}>
    ${picture.frames.map((frame) => html`<${Frame} key=${frame.id} frame=${frame} depth=${depths.get(frame.id)} />`)}
    ${edges.map(({ edge, at }) => html`<${Edge} key=${at} edge=${edge} at=${at} />`)}
    ${picture.boxes.map((box) => html`<${Box} key=${box.id} box=${box} colors=${colors} model=${model} />`)}
  </svg>`;
}
