// Panel of one walk: picture, dot canvas and tooltip; and the panel above all walks for requests in no walk.

import { useLive } from "../live.js";
import { seconds } from "../components.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { DotLayer } from "./dot_layer.js";
import { bounds, Picture } from "./picture.js";
import { ActivityOverlay } from "./activity_overlay.js";
import { QUEUE_LAYER } from "./dot_animator.js";
import { edgePaths } from "./edge_paths.js";

const MIN_SCALE = 0.6;
const DEFAULT_SCALE = 0.85;
const MAX_SCALE = 1;
const TIP_TOLERANCE = 6;
const QUEUE_LABEL_WIDTH = 90;
const BETWEEN_LABEL_WIDTH = 116;

/** Keep a layer in sync with the size and visibility of its canvas. `units`: the area shown, in picture units. */
function observeCanvas(layer, canvas, units, sized) {
  const sizes = new ResizeObserver(() => {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width) return;
    sized?.(width, height);
    const room = units(width);
    layer.resize(width, height, width / room.width, room.left, room.top);
  });
  const visibility = new IntersectionObserver(([{ isIntersecting }]) => {
    layer.isSeen = isIntersecting;
    layer.isDirty = true;
    layer.wake();
  });
  sizes.observe(canvas);
  visibility.observe(canvas);
  return () => {
    sizes.disconnect();
    visibility.disconnect();
  };
}

/** Tooltip of the dot under the pointer. Null: none. */
function useTip(layer, go) {
  const [tip, show] = useState(null);
  const at = (event) => {
    const corner = layer.current.canvas.getBoundingClientRect();
    return [event.clientX - corner.left, event.clientY - corner.top];
  };
  const onPointerMove = (event) => {
    const [x, y] = at(event);
    // A dot can move on while the pointer rests: the tooltip stays until the pointer moves.
    if (tip && Math.hypot(tip.x - x, tip.y - y) < TIP_TOLERANCE) return;
    const dot = layer.current.nearest(x, y);
    if (dot) show({ record: dot.owner, worker: dot.worker, x, y, width: layer.current.width });
    else if (tip) show(null);
  };
  const onClick = (event) => {
    const id = (tip?.record ?? layer.current.nearest(...at(event))?.owner)?.request.id;
    if (!id) return;
    event.preventDefault(); // the dot can be over an op, which is a link
    go(`#/requests/${encodeURIComponent(id)}`);
  };
  const look = tip?.record.request.id ? "sheet clickable" : "sheet";
  return { tip, on: { onPointerMove, onPointerLeave: () => show(null), onClick, class: look } };
}

function Tip({ tip }) {
  const t = useLive((state) => Math.round(state.t * 5) / 5);
  const { request } = tip.record;
  const since = useLive((state) => state.requests.get(request.rid)?.since);
  const emitted = Object.entries(request.emitted).map(([kind, count]) => `${count} ${kind}`).join(", ");
  const place = tip.x > tip.width / 2 ? { right: `${tip.width - tip.x + 12}px` } : { left: `${tip.x + 12}px` };
  return html`<div class="tip" style=${{ ...place, top: `${tip.y + 12}px` }}>
    <b>${request.id ?? "request of another API key"}</b>
    <span>${since === undefined ? "finished" : `${request.state}, ${seconds(Math.max(0, t - since))}`}</span>
    <span>${tip.worker && `on ${tip.worker}`}</span>
    <span>${request.attempt > 1 && `attempt ${request.attempt}`}</span>
    <span>${emitted}</span>
  </div>`;
}

function makeSpots(picture, room) {
  const boxes = picture.boxes.map(({ id, x, y, w, h }) => [id, { id, kind: "box", x, y, w, h }]);
  const entry = { id: "entry", kind: "entry", x: room.left + 2, y: room.top + 10, w: 14, h: room.height - 20 };
  return new Map([...boxes, ["entry", entry]]);
}

/** Whether an element overflows. Only then it is focusable by keyboard. */
function useOverflow(element) {
  const [isWide, setWide] = useState(false);
  useEffect(() => {
    const measure = () => setWide(element.current.scrollWidth > element.current.clientWidth + 1);
    const sizes = new ResizeObserver(measure);
    sizes.observe(element.current);
    return () => sizes.disconnect();
  }, []);
  return isWide;
}

/** Number of running requests of a model that match a predicate. */
function useCount(model, matches) {
  return useLive(({ requests }) => {
    let sum = 0;
    for (const one of requests.values()) sum += one.model === model && matches(one);
    return sum;
  });
}

/** `zoom`: scale of the picture, null to fit the width. A folded walk unfolds when a request enters it. */
export function WalkPanel({ animator, walk, colors, zoom, isFolded, go }) {
  const room = useMemo(() => bounds(walk.picture), [walk]);
  const [sheet, canvas, layer, scroll] = [useRef(), useRef(), useRef(), useRef()];
  const count = useCount(animator.model, (one) => one.walk === walk.name);
  const [chosen, choose] = useState(null);
  const isIdle = useRef(isFolded);
  if (count) isIdle.current = false;
  const isOpen = chosen ?? !isIdle.current;
  const isWide = useOverflow(scroll);
  useEffect(() => {
    const svg = sheet.current.querySelector("svg");
    const about = { canvas: canvas.current, spots: makeSpots(walk.picture, room), path: edgePaths(walk.picture, svg) };
    layer.current = new DotLayer({ ...about, wake: () => animator.wake() });
    animator.addLayer(walk.name, layer.current, new ActivityOverlay(svg, walk), walk.calls);
    return observeCanvas(layer.current, canvas.current, () => room);
  }, [animator]);
  const { tip, on } = useTip(layer, go);
  const wide = zoom
    ? { width: `${room.width * zoom}px` }
    : { width: `min(100%, ${room.width * MAX_SCALE}px)`, minWidth: `${room.width * MIN_SCALE}px` };
  const picture = useMemo(
    () => html`<${Picture} model=${animator.model} name=${walk.name} picture=${walk.picture} room=${room} colors=${colors} />`,
    [walk, colors],
  );
  const basis = { flexBasis: `${room.width * (zoom ?? DEFAULT_SCALE) + 26}px`, flexGrow: room.width };
  return html`<section class="panel walk" id=${`walk-${walk.name}`} aria-label=${`walk ${walk.name}`} style=${isOpen ? basis : {}}>
    <h2><button type="button" class="fold" aria-expanded=${String(isOpen)} onClick=${() => choose(!isOpen)}>${walk.name}</button>
      ${" "}<small class=${count ? "some" : ""}>${count === 1 ? "1 request" : `${count} requests`}</small></h2>
    <div class="scroll" hidden=${!isOpen} ref=${scroll} tabindex=${isWide ? 0 : undefined} role=${isWide ? "group" : undefined}
      aria-label=${isWide ? `picture of ${walk.name}` : undefined}>
      <div ...${on} ref=${sheet} style=${{ ...wide, aspectRatio: `${room.width} / ${room.height}` }}>
        ${picture}<canvas ref=${canvas}></canvas>${tip && html`<${Tip} tip=${tip} />`}
      </div>
    </div>
  </section>`;
}

/** Requests in no walk: queued ones, then those between walks or waiting for client input. */
export function QueuePanel({ animator, go }) {
  const [canvas, layer] = [useRef(), useRef()];
  const queue = useCount(animator.model, (one) => one.state === "queued");
  useEffect(() => {
    const spots = new Map(["queue", "between"].map((id) => [id, { id, kind: "queue", x: 0, y: 0, w: 1, h: 26 }]));
    layer.current = new DotLayer({ canvas: canvas.current, spots, path: () => null, wake: () => animator.wake() });
    animator.addLayer(QUEUE_LAYER, layer.current, null);
    const sized = (width) => {
      Object.assign(spots.get("queue"), { x: QUEUE_LABEL_WIDTH, w: width * 0.6 - QUEUE_LABEL_WIDTH - 8 });
      Object.assign(spots.get("between"), { x: width * 0.6 + BETWEEN_LABEL_WIDTH, w: width * 0.4 - BETWEEN_LABEL_WIDTH });
    };
    return observeCanvas(layer.current, canvas.current, (width) => ({ width, left: 0, top: 0 }), sized);
  }, [animator]);
  const { tip, on } = useTip(layer, go);
  return html`<div class="queue panel">
    <p>queued <b>${queue}</b></p><p class="second">between walks</p>
    <div ...${on}><canvas ref=${canvas}></canvas>${tip && html`<${Tip} tip=${tip} />`}</div>
  </div>`;
}

function WalkLink({ model, name }) {
  const count = useCount(model, (one) => one.walk === name);
  const show = () => {
    const panel = document.getElementById(`walk-${name}`);
    panel.querySelector("[aria-expanded=false]")?.click();
    panel.scrollIntoView({ block: "start" });
  };
  const some = html`<span class=${count ? "some" : ""}>${count}</span>`;
  return html`<li><button type="button" onClick=${show}>${name}${some}</button></li>`;
}

/** All walks with their request counts. A click scrolls to the walk's panel. */
export function WalkLinks({ model, walks }) {
  return html`<nav class="jumps" aria-label="Walks"><h2>Walks</h2><ul>
    ${walks.map(({ name }) => html`<${WalkLink} key=${name} model=${model} name=${name} />`)}
  </ul></nav>`;
}
