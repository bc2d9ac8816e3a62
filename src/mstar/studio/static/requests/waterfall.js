// Waterfall of one trace: zoom by wheel and pinch, pan by dragging, navigate by arrow keys; details of the bar under the
// pointer. Several waterfalls can share a view. It sends no requests.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { AXIS, Chart, palette } from "./chart.js";
import { details, layout } from "./trace_summary.js";

const CLICK_TOLERANCE = 4; // maximum pointer movement of a click, in pixels

/** Attach event listeners that call `point(item)`, `choose(item)`, `step(by)`, `closer()`. Returns a function that detaches. */
function steer(box, chart, view, calls) {
  const abort = new AbortController();
  const on = (name, call, options) => box.addEventListener(name, call, { signal: abort.signal, ...options });
  on("wheel", (event) => wheel(event, box, chart, view), { passive: false });
  on("keydown", (event) => press(event, view, calls));
  drag(on, box, chart, view, calls);
  return () => abort.abort();
}

function place(event, box) {
  const { left, top } = box.getBoundingClientRect();
  return [event.clientX - left - box.clientLeft, event.clientY - top - box.clientTop];
}

function wheel(event, box, chart, view) {
  const [x] = place(event, box);
  if (x < chart.gutter) return; // over the labels, the wheel scrolls
  const lines = event.deltaMode === 1 ? 16 : 1;
  const wide = box.clientWidth - chart.gutter;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    view.pan((((event.deltaX || event.deltaY) * lines) / wide) * (view.to - view.from));
  } else {
    if (view.isFit && event.deltaY > 0) return; // fully zoomed out: the page scrolls
    view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * 0.003))), chart.time(x));
  }
  event.preventDefault();
}

function press(event, view, { step, closer }) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const far = (view.to - view.from) / 8;
  const keys = {
    ArrowLeft: () => view.pan(-far),
    ArrowRight: () => view.pan(far),
    ArrowUp: () => step(-1),
    ArrowDown: () => step(1),
    Home: () => step(-Infinity),
    End: () => step(Infinity),
    Enter: closer,
    "+": () => view.zoom(1 / 1.5),
    "=": () => view.zoom(1 / 1.5),
    "-": () => view.zoom(1.5),
    0: () => view.fit(),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

function drag(on, box, chart, view, { point, choose }) {
  const down = new Map(); // pressed pointers with their positions
  let moved = 0;
  on("pointerdown", (event) => {
    if (event.button > 0) return;
    if (!down.size) moved = 0;
    down.set(event.pointerId, place(event, box));
  });
  on("pointermove", (event) => {
    const now = place(event, box);
    const before = down.get(event.pointerId);
    if (!before) return point(chart.find(...now));
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (other) pinch(before, now, other, chart, view);
    else if (moved > CLICK_TOLERANCE) {
      if (!box.hasPointerCapture(event.pointerId)) box.setPointerCapture(event.pointerId);
      view.pan(chart.time(before[0]) - chart.time(now[0]));
      if (event.pointerType === "mouse") box.scrollTop -= now[1] - before[1];
    }
    down.set(event.pointerId, now);
  });
  on("pointerup", (event) => {
    if (down.delete(event.pointerId) && moved <= CLICK_TOLERANCE) choose(chart.find(...place(event, box)));
  });
  on("pointercancel", (event) => down.delete(event.pointerId));
  on("pointerleave", (event) => {
    down.delete(event.pointerId);
    point(null);
  });
}

/** Pinch zoom: the content between the two fingers stays there. */
function pinch(before, now, other, chart, view) {
  const was = Math.max(20, Math.abs(before[0] - other[0]));
  const is = Math.max(20, Math.abs(now[0] - other[0]));
  view.zoom(was / is, chart.time((now[0] + other[0]) / 2));
}

const KEYS =
  "Left and right arrows pan, up and down select bars, plus and minus zoom, 0 fits all, Enter zooms to the selected bar.";

/** Zoom buttons. */
export function Zoom({ view }) {
  const button = (text, label, act) =>
    html`<button type="button" class="button" aria-label=${label} title=${label} onClick=${act}>${text}</button>`;
  return html`<div class="row zoom" role="group" aria-label="Zoom">
    ${button("+", "Zoom in", () => view.zoom(1 / 1.6))}
    ${button("−", "Zoom out", () => view.zoom(1.6))}
    ${button("Fit", "Fit all", () => view.fit())}
  </div>`;
}

export function Legend({ isTimed }) {
  const one = (look, text) => html`<li><i class=${`mark-${look}`} aria-hidden="true"></i>${text}</li>`;
  return html`<ul class="marks">
    ${one("busy", "compute (height: share of the time)")} ${one("waits", "queue wait")}
    ${one("idle", "between calls")} ${one("queue", "queued")} ${one("walk", "walk")} ${one("tick", "emission")}
    ${isTimed && html`${one("due", "deadline")} ${one("late", "late")}`}
  </ul>`;
}

/** The chart of a canvas, updated on changes of theme, size and view. */
function useChart(box, canvas, view, calls) {
  const reference = useRef(null);
  useEffect(() => {
    const chart = new Chart(canvas.current, view);
    reference.current = chart;
    const ends = [view.subscribe(() => chart.plan()), steer(box.current, chart, view, calls)];
    const sized = new ResizeObserver(() => chart.resize(box.current.clientWidth, box.current.clientHeight));
    sized.observe(box.current);
    const repaint = () => {
      chart.colors = palette();
      chart.plan();
    };
    const themed = new MutationObserver(repaint);
    themed.observe(document.documentElement, { attributes: true });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", repaint);
    return () => {
      ends.forEach((end) => end());
      sized.disconnect();
      themed.disconnect();
      dark.removeEventListener("change", repaint);
      chart.stop();
    };
  }, [view]);
  return reference;
}

function Details({ item }) {
  if (!item) return html`<p class="soft">Point at a bar, or select one with the arrow keys, for details.</p>`;
  const one = ([word, value, isBad]) =>
    html`<div key=${word} class=${isBad ? "bad" : undefined}><dt>${word}</dt><dd>${value}</dd></div>`;
  return html`<dl class="facts">${details(item).map(one)}</dl>`;
}

export function Waterfall({ trace, workers, view, label }) {
  const [box, canvas] = [useRef(null), useRef(null)];
  const [chosen, choose] = useState(null);
  const [hovered, hover] = useState(null);
  const laid = useMemo(() => layout(trace, workers), [trace, workers]);
  const now = useRef();
  now.current = { laid, chosen };
  const calls = useMemo(() => steps(now, choose, hover, view, box), [view]);
  const chart = useChart(box, canvas, view, calls);
  useEffect(() => {
    chart.current.rows = laid.rows;
    chart.current.end = trace.seconds;
    chart.current.chosen = chosen;
    chart.current.hovered = hovered;
    chart.current.plan();
  }, [laid, chosen, hovered, view]);
  const scrolled = () => {
    chart.current.scroll = box.current.scrollTop;
    chart.current.draw(); // immediately: the browser has already scrolled
  };
  const item = laid.items.find((each) => each.key === (hovered ?? chosen));
  const high = laid.height + AXIS + 6;
  return html`<div class="waterfall">
    <div class="chart" ref=${box} tabindex="0" role="application" aria-label=${`${label}. ${KEYS}`}
      style=${{ height: `${high + 2}px` }} onScroll=${scrolled}>
      <canvas ref=${canvas} aria-hidden="true"></canvas>
      <div class="rows" style=${{ height: `${high}px` }}></div>
    </div>
    <div class="details" role="status"><${Details} item=${item} /></div>
  </div>`;
}

/** Actions of pointer and keyboard. `now` is the current layout and selection. */
function steps(now, choose, hover, view, box) {
  const at = () => now.current.laid.items.findIndex((each) => each.key === now.current.chosen);
  const reveal = (item) => {
    if (item.end < view.from || item.from > view.to) {
      const half = (view.to - view.from) / 2;
      view.show(item.start - half, item.start + half);
    }
    const row = now.current.laid.rows[item.row];
    const seen = box.current.clientHeight - AXIS;
    if (row.y < box.current.scrollTop) box.current.scrollTop = row.y;
    if (row.y + row.height > box.current.scrollTop + seen) box.current.scrollTop = row.y + row.height - seen;
  };
  return {
    point: (item) => {
      box.current.classList.toggle("over", Boolean(item));
      hover(item?.key ?? null);
    },
    choose: (item) => choose(item?.key ?? null),
    step: (by) => {
      const { items } = now.current.laid;
      const item = items[Math.min(Math.max(0, at() + by), items.length - 1)];
      if (!item) return;
      hover(null);
      choose(item.key);
      reveal(item);
    },
    closer: () => {
      const item = now.current.laid.items[at()];
      if (!item) return;
      const wide = Math.max(item.end - item.from, view.length / 200);
      view.show(item.from - wide * 0.1, item.end + wide * 0.3);
    },
  };
}
