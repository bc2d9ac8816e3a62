// Zoom of the pictures: to the width of the page, or a fixed scale.

import { html } from "../vendor/preact.js";

const SCALES = [0.5, 0.75, 1, 1.5, 2];

/** `zoom`: a scale, or null to fit the width. */
export function Zoom({ zoom, setZoom }) {
  const larger = SCALES.find((scale) => scale > (zoom ?? 0.75));
  const smaller = SCALES.findLast((scale) => scale < (zoom ?? 1));
  const button = (text, label, scale) => html`<button type="button" class="button quiet" aria-label=${label} title=${label}
    disabled=${scale === undefined} onClick=${() => setZoom(scale)}>${text}</button>`;
  return html`<div class="row zoom" role="group" aria-label="Zoom of the graph">
    ${button("−", "Zoom out", smaller)}${button("+", "Zoom in", larger)}${button("Fit", "Fit the width", null)}
    <span class="soft" role="status">${zoom === null ? "" : `${zoom * 100} %`}</span>
  </div>`;
}
