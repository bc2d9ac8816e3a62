// The panel of one walk: its picture, the canvas with its dots, and what the pointer does there;
// and the lane above all of them, in which requests are that are in no walk.

import { useLive } from "../live.js";
import { seconds } from "../components.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { DotLayer } from "./dot_layer.js";
import { bounds, Picture } from "./picture.js";
import { ActivityOverlay } from "./activity_overlay.js";
import { LANE } from "./dot_animator.js";
import { edgePaths } from "./edge_paths.js";

const [LEAST, USUAL, MOST] = [0.6, 0.85, 1];
const STAYS = 6;
const [QUEUE, BETWEEN] = [90, 116];

/** A field that follows the size of its canvas and whether it is in sight. `units`: what lies across its width. */
function observeCanvas(field, canvas, units, sized) {
  const sizes = new ResizeObserver(() => {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width) return;
    sized?.(width, height);
    const room = units(width);
    field.resize(width, height, width / room.width, room.left, room.top);
  });
  const sights = new IntersectionObserver(([{ isIntersecting }]) => {
    field.isSeen = isIntersecting;
    field.isDirty = true;
    field.wake();
  });
  sizes.observe(canvas);
  sights.observe(canvas);
  return () => {
    sizes.disconnect();
    sights.disconnect();
  };
}

/** What the pointer is on, and where; `shown` is null when there is nothing. */
function useTip(field, go) {
  const [tip, show] = useState(null);
  const at = (event) => {
    const corner = field.current.canvas.getBoundingClientRect();
    return [event.clientX - corner.left, event.clientY - corner.top];
  };
  const onPointerMove = (event) => {
    const [x, y] = at(event);
    // A dot may go on while the pointer rests: the tip stays until the pointer goes.
    if (tip && Math.hypot(tip.x - x, tip.y - y) < STAYS) return;
    const dot = field.current.nearest(x, y);
    if (dot) show({ record: dot.owner, worker: dot.worker, x, y, width: field.current.width });
    else if (tip) show(null);
  };
  const onClick = (event) => {
    const id = (tip?.record ?? field.current.nearest(...at(event))?.owner)?.request.id;
    if (id) go(`#/requests/${encodeURIComponent(id)}`);
  };
  const look = tip?.record.request.id ? "sheet hits" : "sheet";
  return { tip, on: { onPointerMove, onPointerLeave: () => show(null), onClick, class: look } };
}

function Tip({ tip }) {
  const t = useLive((state) => Math.round(state.t * 5) / 5);
  const { request } = tip.record;
  const since = useLive((state) => state.requests.get(request.rid)?.since);
  const emitted = Object.entries(request.emitted).map(([kind, count]) => `${count} ${kind}`).join(", ");
  const place = tip.x > tip.width / 2 ? { right: `${tip.width - tip.x + 12}px` } : { left: `${tip.x + 12}px` };
  return html`<div class="tip" style=${{ ...place, top: `${tip.y + 12}px` }}>
    <b>${request.id ?? "another key's request"}</b>
    <span>${since === undefined ? "over" : `${request.state}, ${seconds(Math.max(0, t - since))}`}</span>
    <span>${tip.worker && `on ${tip.worker}`}</span>
    <span>${request.attempt > 1 && `attempt ${request.attempt}`}</span>
    <span>${emitted}</span>
  </div>`;
}

function makeSpots(picture, room) {
  const boxes = picture.boxes.map(({ id, x, y, w, h }) => [id, { id, kind: "box", x, y, w, h }]);
  const gate = { id: "gate", kind: "gate", x: room.left + 2, y: room.top + 10, w: 14, h: room.height - 20 };
  return new Map([...boxes, ["gate", gate]]);
}

/** Whether what scrolls is wider than there is room: only then it is a stop for the keyboard. */
function useOverflow(element) {
  const [isWide, tell] = useState(false);
  useEffect(() => {
    const look = () => tell(element.current.scrollWidth > element.current.clientWidth + 1);
    const sizes = new ResizeObserver(look);
    sizes.observe(element.current);
    return () => sizes.disconnect();
  }, []);
  return isWide;
}

/** How many live requests of a model are such that `counts` says so. */
function useCount(model, counts) {
  return useLive(({ requests }) => {
    let sum = 0;
    for (const one of requests.values()) sum += one.model === model && counts(one);
    return sum;
  });
}

export function WalkPanel({ stage, walk, colours, go }) {
  const room = useMemo(() => bounds(walk.picture), [walk]);
  const [sheet, canvas, field, scroll] = [useRef(), useRef(), useRef(), useRef()];
  const count = useCount(stage.model, (one) => one.walk === walk.name);
  const isWide = useOverflow(scroll);
  useEffect(() => {
    const svg = sheet.current.querySelector("svg");
    const about = { canvas: canvas.current, spots: makeSpots(walk.picture, room), way: edgePaths(walk.picture, svg) };
    field.current = new DotLayer({ ...about, wake: () => stage.wake() });
    stage.enter(walk.name, field.current, new ActivityOverlay(svg, walk), walk.calls);
    return observeCanvas(field.current, canvas.current, () => room);
  }, [stage]);
  const { tip, on } = useTip(field, go);
  const wide = { width: `min(100%, ${room.width * MOST}px)`, minWidth: `${room.width * LEAST}px` };
  const picture = useMemo(
    () => html`<${Picture} name=${walk.name} picture=${walk.picture} room=${room} colours=${colours} />`,
    [walk, colours],
  );
  return html`<section class="panel walk" id=${`walk-${walk.name}`} aria-label=${`walk ${walk.name}`}
    style=${{ flexBasis: `${room.width * USUAL + 26}px`, flexGrow: room.width }}>
    <h2>${walk.name} <small class=${count ? "some" : ""}>${count === 1 ? "1 request" : `${count} requests`}</small></h2>
    <div class="scroll" ref=${scroll} tabindex=${isWide ? 0 : undefined} role=${isWide ? "group" : undefined}
      aria-label=${isWide ? `picture of ${walk.name}` : undefined}>
      <div ...${on} ref=${sheet} style=${{ ...wide, aspectRatio: `${room.width} / ${room.height}` }}>
        ${picture}<canvas ref=${canvas}></canvas>${tip && html`<${Tip} tip=${tip} />`}
      </div>
    </div>
  </section>`;
}

/** Those who are in no walk: first who waits for its turn, then who is between walks or listens to its client. */
export function Lane({ stage, go }) {
  const [canvas, field] = [useRef(), useRef()];
  const queue = useCount(stage.model, (one) => one.state === "queued");
  useEffect(() => {
    const spots = new Map(["queue", "between"].map((id) => [id, { id, kind: "lane", x: 0, y: 0, w: 1, h: 26 }]));
    field.current = new DotLayer({ canvas: canvas.current, spots, way: () => null, wake: () => stage.wake() });
    stage.enter(LANE, field.current, null);
    const sized = (width) => {
      Object.assign(spots.get("queue"), { x: QUEUE, w: width * 0.6 - QUEUE - 8 });
      Object.assign(spots.get("between"), { x: width * 0.6 + BETWEEN, w: width * 0.4 - BETWEEN });
    };
    return observeCanvas(field.current, canvas.current, (width) => ({ width, left: 0, top: 0 }), sized);
  }, [stage]);
  const { tip, on } = useTip(field, go);
  return html`<div class="lane panel">
    <p>queued <b>${queue}</b></p><p class="second">between walks</p>
    <div ...${on}><canvas ref=${canvas}></canvas>${tip && html`<${Tip} tip=${tip} />`}</div>
  </div>`;
}

function WalkLink({ model, name }) {
  const count = useCount(model, (one) => one.walk === name);
  const show = () => document.getElementById(`walk-${name}`).scrollIntoView({ block: "start" });
  const some = html`<span class=${count ? "some" : ""}>${count}</span>`;
  return html`<li><button type="button" onClick=${show}>${name}${some}</button></li>`;
}

/** All walks with how many are in each; a click brings a walk's panel into sight. */
export function WalkLinks({ model, walks }) {
  return html`<nav class="jumps" aria-label="Walks"><h2>Walks</h2><ul>
    ${walks.map(({ name }) => html`<${WalkLink} key=${name} model=${model} name=${name} />`)}
  </ul></nav>`;
}
