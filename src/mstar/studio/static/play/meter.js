// Level meters, waveforms and lists of metrics. Measures nothing.

import { html } from "../vendor/preact.js";

const BINS = 240;

/** Audio level from 0 to 1, shown in decibels. */
export function Level({ label, value }) {
  const part = Math.max(0, Math.min(1, 1 + Math.log10(Math.max(value, 1e-4)) / 2.5));
  return html`<div class="level" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="1"
    aria-valuenow=${part.toFixed(2)}><span>${label}</span>
    <i><b style=${{ transform: `scaleX(${part})` }}></b></i></div>`;
}

/** Waveform of `peaks` (20 ms each), of which `played` seconds have been played. */
export function Wave({ peaks, played }) {
  const each = Math.max(peaks.length, 150) / BINS;
  const most = Math.max(0.1, ...peaks);
  const paths = ["", ""];
  for (let bin = 0; bin * each < peaks.length; bin += 1) {
    const half = Math.max(0.6, (30 * Math.max(...peaks.slice(bin * each, (bin + 1) * each + 1))) / most);
    paths[bin * each < played * 50 ? 1 : 0] += `M${bin + 0.5} ${32 - half}V${32 + half}`;
  }
  const text = `${(peaks.length / 50).toFixed(1)} s of audio`;
  return html`<svg class="wave" viewBox="0 0 ${BINS} 64" preserveAspectRatio="none" role="img" aria-label=${text}>
    <path d=${paths[0]} /><path class="played" d=${paths[1]} /></svg>`;
}

/** List of metrics [[name, value, hint?]] without empty values, and a link to the trace of the request. */
export function Figures({ items, id }) {
  const one = ([name, value, hint]) => html`<div key=${name} title=${hint}><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`<div class="figures"><dl>${items.filter(([, value]) => value || value === 0).map(one)}</dl>
    ${id && html`<a href=${`#/requests/${id}`}>trace</a>`}</div>`;
}
