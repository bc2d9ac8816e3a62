// Shared by the chat, conversation, speech and transcription panels: state, form fields, chat log.
// State lives outside the components, so that a request continues while another page is open.

import { api, ApiError } from "../api.js";
import { Choice, Field } from "../components.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const stores = new Map();
api.onKey((change) => {
  if (change !== "out") return;
  for (const store of stores.values()) store.stop?.(); // do not leak one key's state to the next
  stores.clear();
});

/** Observable state. */
export class Store {
  #listeners = new Set();

  constructor(model, state) {
    this.model = model;
    this.state = state;
  }

  change(fields) {
    this.state = { ...this.state, ...fields };
    for (const listener of this.#listeners) listener();
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** The store of this class for this model, created on first use. */
export function useStore(Kind, model) {
  const key = `${Kind.name} ${model}`;
  if (!stores.has(key)) stores.set(key, new Kind(model));
  const store = stores.get(key);
  const [, render] = useState(0);
  useEffect(() => store.subscribe(() => render((count) => count + 1)), [store]);
  return store;
}

// ---------------------------------------------------------------- requests
/** A new request id. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");
}

export const failed = ({ message, code }) => new ApiError(message, { status: 400, code });

/** Data of a stream event. Throws if it is an error. */
export function check({ data }) {
  if (data.error) throw failed(data.error);
  return data;
}

export const isAbort = (error) => error.name === "AbortError";

/** Non-empty parameters as numbers. */
export const numbers = (params) =>
  Object.fromEntries(Object.entries(params).flatMap(([name, text]) => (text === "" ? [] : [[name, Number(text)]])));

// ---------------------------------------------------------------- fields
/** Form field for `name` of a store. `tag` is the control; other props are its attributes. */
export function ParamField({ store, name, label, tag = "input", ...rest }) {
  const take = (event) => store.change({ [name]: event.target.value });
  return html`<${Field} label=${label}><${tag} ...${rest} value=${store.state[name]} onInput=${take} /><//>`;
}

/** Voice selection, stored as `voice`. */
export function Voice({ store, entry }) {
  const [voices, setVoices] = useState([]);
  useEffect(() => {
    const path = `/v1/audio/voices?model=${encodeURIComponent(entry.id)}`;
    // Errors are ignored: without a list the default voice is used.
    if (entry.capabilities.includes("speech")) api.json(path).then((response) => setVoices(response.voices), () => {});
  }, [entry.id]);
  return html`<${Choice} label="Voice" value=${store.state.voice} options=${[["", "default"], ...voices]}
    choose=${(voice) => store.change({ voice })} />`;
}

/** File input styled as a button. */
export function FilePicker({ text, label, choose, ...rest }) {
  const chosen = ({ target }) => {
    choose([...target.files]);
    target.value = ""; // allows choosing the same file again
  };
  return html`<label class="button pick">${text}<input type="file" aria-label=${label ?? text} ...${rest}
    onChange=${chosen} /></label>`;
}

// ---------------------------------------------------------------- chat log
/** Chat log. Scrolls to the end for new messages, unless the user has scrolled up. */
export function Log({ label, empty, children }) {
  const place = useRef();
  useEffect(() => {
    const box = place.current;
    if (box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
  });
  return html`<div class="chat-log" role="log" aria-label=${label} tabindex="0" ref=${place}>
    ${children.length ? children : html`<p class="note empty">${empty}</p>`}</div>`;
}

export function ChatMessage({ who, isLive, children }) {
  return html`<div class="message ${who ? "" : "mine"}" aria-busy=${Boolean(isLive)}>
    <h2>${who ?? "You"}</h2>${children}</div>`;
}
