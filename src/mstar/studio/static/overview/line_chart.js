// A chart of one or two series over time, as SVG. Pointing at it shows the values of that moment.

import { seconds } from "../components.js";
import { html, useState } from "../vendor/preact.js";

/** A new server has little to show: its axis is at least this long. */
const MIN_SPAN_S = 120;
const [WIDTH, HEIGHT] = [360, 72];

/** The points of a series as path data. Moments without a value interrupt the line. */
function pathOf(times, values, span, top) {
  let isDrawing = false;
  return values
    .map((value, at) => {
      const x = WIDTH * (1 - (times.at(-1) - times[at]) / span);
      if (value === null) {
        isDrawing = false;
        return "";
      }
      const move = isDrawing ? "L" : "M";
      // A lone value is a dot: a line of no length with round ends.
      const dot = !isDrawing && (values[at + 1] ?? null) === null ? "h0.01" : "";
      isDrawing = true;
      return `${move}${x.toFixed(1)} ${(HEIGHT - (HEIGHT - 4) * (value / top)).toFixed(1)}${dot}`;
    })
    .join("");
}

const latest = (values) => values.findLast((value) => value !== null) ?? null;

/** Index of the sample nearest to a horizontal position from 0 to 1. */
function nearest(times, span, position) {
  const wanted = times.at(-1) - span * (1 - position);
  return times.reduce((best, time, at) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? at : best), 0);
}

/**
 * `times`: seconds since the epoch, at least one; `series`: [{name, values}], drawn in this order; `format(value)` makes the text of a value; `top` is the greatest value
 * of the axis, or undefined for that of the series.
 */
export function LineChart({ label, note, times, series, format, top }) {
  const [pointed, point] = useState(null);
  const span = Math.max(MIN_SPAN_S, times.at(-1) - times[0]);
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  const greatest = values.length ? Math.max(...values) : null;
  const scale = top ?? (greatest || 1);
  const at = pointed !== null && pointed < times.length ? pointed : null;
  const text = (one) => {
    const value = at === null ? latest(one.values) : one.values[at];
    return value === null ? "–" : format(value);
  };
  const when = at === null ? "now" : new Date(times[at] * 1000).toLocaleTimeString();
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    point(nearest(times, span, (event.clientX - box.left) / box.width));
  };
  const spoken = `${label}: ${series.map((one) => `${one.name ?? ""} ${text(one)}`.trim()).join(", ")}${
    greatest === null ? "" : `; highest ${format(greatest)}`
  }`;
  return html`<figure class="panel figure" aria-label=${label}>
    <figcaption><h2>${label}</h2><small>${at === null ? note : when}</small></figcaption>
    <p class="value">${series.map((one, index) => html`<span key=${index} class=${`s${index}`}>
      <b>${text(one)}</b>${one.name && html` <small>${one.name}</small>`}</span>`)}</p>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${spoken}
      onPointerMove=${move} onPointerLeave=${() => point(null)}>
      ${series.map((one, index) => html`<path key=${index} class=${`s${index}`} d=${pathOf(times, one.values, span, scale)} />`)}
    </svg>
    <p class="axis"><span>${seconds(span)} ago</span><span>${greatest !== null && `highest ${format(greatest)}`}</span><span>now</span></p>
  </figure>`;
}
