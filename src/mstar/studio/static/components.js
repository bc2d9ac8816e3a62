// Components and formatters shared by all pages. None of them sends requests.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";

/** Format a duration: 0.00042 → "420 µs", 83 → "1 min 23 s". */
export function seconds(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size < 0.001) return `${Math.round(x * 1e6)} µs`;
  if (size < 1) return `${Number((x * 1e3).toPrecision(3))} ms`;
  if (size < 60) return `${x.toFixed(size < 10 ? 2 : 1)} s`;
  const whole = Math.round(size);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return (x < 0 ? "−" : "") + (hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`);
}

/** Format a size: 1536 → "1.5 KiB". */
export function bytes(x) {
  if (x === null || x === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = Math.min(Math.floor(Math.log2(Math.max(x, 1)) / 10), units.length - 1);
  const size = x / 1024 ** step;
  return `${step && size < 100 ? Number(size.toPrecision(3)) : Math.round(size)} ${units[step]}`;
}

/** Seconds since a `performance.now()` timestamp. */
export const secondsSince = (startedAt) => (performance.now() - startedAt) / 1000;

/** Format a Unix timestamp relative to now: "12 s ago". */
export function timeAgo(t) {
  const past = Math.max(0, Date.now() / 1000 - t);
  if (past < 1) return "now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  return past < 86400 ? `${Math.floor(past / 3600)} h ago` : new Date(t * 1000).toLocaleDateString();
}

/** `tabs`: [{id, label, href?, note?}]. A tab with an href is a link; otherwise it calls `choose(id)`. */
export function Tabs({ tabs, chosen, choose, label }) {
  const pick = (event, id) => {
    if (choose) {
      event.preventDefault();
      choose(id);
    }
  };
  // Links in a <nav>, not role=tab: their targets have URLs, and the browser's keyboard handling works.
  const one = ({ id, label: text, href, note }) => html`<li key=${id}>
    ${href
      ? html`<a href=${href} aria-current=${id === chosen ? "page" : undefined}>${text}</a>`
      : html`<button type="button" aria-pressed=${String(id === chosen)} onClick=${(event) => pick(event, id)}
          >${text}</button>`}
    ${note && html`<small>${note}</small>`}
  </li>`;
  return html`<nav class="tabs" aria-label=${label}><ul>${tabs.map(one)}</ul></nav>`;
}

/** A form control with its label and hint. */
export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

/** A select with its label. `options`: strings, or [value, text]; `choose(value)`. */
export function Choice({ label, value, options, choose, hint, disabled }) {
  const one = (option) => {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    return html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`;
  };
  const pick = (event) => choose(event.target.value);
  return html`<${Field} label=${label} hint=${hint}>
    <select value=${value} disabled=${disabled} onChange=${pick}>${options.map(one)}</select>
  <//>`;
}

/** A progress bar with a text. It is indeterminate without `total`. */
export function ProgressBar({ text, done, total }) {
  const known = total ? { value: done, max: total } : {};
  const bar = html`<progress key=${Boolean(total)} aria-label=${text} ...${known} />`;
  return html`<div class="busy" role="status"><span>${text}</span>${bar}</div>`;
}

const FIXES = {
  unreachable: "Check that the server is running, then try again.",
  invalid_api_key: "Sign in with a valid API key.",
  model_not_found: "Choose another model: this one is not served.",
  rate_limited: "Rate limit exceeded for this API key. Wait a moment, then try again.",
  overloaded: "The server is overloaded. Wait a moment, then try again.",
};

function fixFor(error) {
  if (error.retryAfter) return `Try again in ${seconds(error.retryAfter)}.`;
  if (FIXES[error.code]) return FIXES[error.code];
  if (error.status >= 500) return "Try again. If it fails again, see the log of the server.";
  if (error.status === 404) return "It does not exist, or it has expired.";
  return error.status ? "Change the request, then try again." : "Try again.";
}

/** An error with the next action. `retry` adds a button. */
export function ErrorMessage({ error, retry, what }) {
  if (!error) return null;
  const again = retry && html`<button class="button quiet" type="button" onClick=${retry}>Try again</button>`;
  return html`<div class="error" role="alert">
    <p><strong>${what ?? "Request failed"}:</strong> ${error.message}</p>
    <p>${fixFor(error)} ${again}</p>
  </div>`;
}

/** A block of code with a button that copies it. */
export function Copy({ text, label = "code" }) {
  const [status, setStatus] = useState("");
  useEffect(() => {
    const timer = status && setTimeout(() => setStatus(""), 2000);
    return () => clearTimeout(timer);
  }, [status]);
  const copy = () => {
    // There is no clipboard outside a secure context.
    const copied = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error("no clipboard"));
    copied.then(() => setStatus("Copied"), () => setStatus("Select the text and copy it"));
  };
  return html`<div class="copy">
    <pre class="code" tabindex="0" aria-label=${label}>${text}</pre>
    <button class="button quiet" type="button" onClick=${copy}>${status || "Copy"}</button>
    <span class="sr" role="status">${status}</span>
  </div>`;
}

/** A labelled bar for `value` of `max`, with an optional text for the value. */
export function Meter({ label, value, max = 1, text, look = "" }) {
  const part = max > 0 ? Math.max(0, Math.min(1, (value ?? 0) / max)) : 0;
  return html`<div class="meter ${look}">
    <span>${label}</span><span>${text ?? `${Math.round(part * 100)} %`}</span>
    <div class="bar" role="meter" aria-label=${label} aria-valuetext=${text}
      aria-valuemin="0" aria-valuemax=${max} aria-valuenow=${value ?? 0}>
      <i style=${{ width: `${part * 100}%` }}></i>
    </div>
  </div>`;
}

/** A modal dialog, open while mounted. Escape calls `close` too. */
export function Dialog({ title, close, children }) {
  const element = useRef();
  useEffect(() => {
    element.current.showModal();
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    close?.();
  };
  return html`<dialog ref=${element} aria-label=${title} onCancel=${cancel}><h2>${title}</h2>${children}</dialog>`;
}
