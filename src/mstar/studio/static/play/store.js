// What the panels of words and sound share: where a call's state lives, its fields, and how what was said is shown.
// State lives outside of the components, so that a call goes on while its user looks at another page.

import { api, ApiError } from "../api.js";
import { Choice, Field } from "../components.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const stores = new Map();
api.onKey((what) => {
  if (what !== "out") return;
  for (const store of stores.values()) store.stop?.(); // what one holder of a key did is not the next one's
  stores.clear();
});

/** A state that tells those who watch it when it changes. */
export class Store {
  #watchers = new Set();

  constructor(model, state) {
    this.model = model;
    this.state = state;
  }

  change(fields) {
    this.state = { ...this.state, ...fields };
    for (const told of this.#watchers) told();
  }

  watch(told) {
    this.#watchers.add(told);
    return () => this.#watchers.delete(told);
  }
}

/** The store of this kind for this model: the one there is, or a new one. */
export function useStore(Kind, model) {
  const key = `${Kind.name} ${model}`;
  if (!stores.has(key)) stores.set(key, new Kind(model));
  const store = stores.get(key);
  const [, turn] = useState(0);
  useEffect(() => store.watch(() => turn((count) => count + 1)), [store]);
  return store;
}

// ---------------------------------------------------------------- a call
/** An id for a request, known before it is sent. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");
}

export const failed = ({ message, code }) => new ApiError(message, { status: 400, code });

/** What an event of a stream holds; throws what it says has failed. */
export function check({ data }) {
  if (data.error) throw failed(data.error);
  return data;
}

export const isAbort = (error) => error.name === "AbortError";

/** Those of the wishes that were made, as numbers. */
export const numbers = (wishes) =>
  Object.fromEntries(Object.entries(wishes).flatMap(([name, text]) => (text === "" ? [] : [[name, Number(text)]])));

// ---------------------------------------------------------------- fields
/** A field that is kept in a store under `name`; `tag` is the control, with the rest as its attributes. */
export function ParamField({ store, name, label, tag = "input", ...rest }) {
  const take = (event) => store.change({ [name]: event.target.value });
  return html`<${Field} label=${label}><${tag} ...${rest} value=${store.state[name]} onInput=${take} /><//>`;
}

/** The voice of a model, kept in a store as `voice`. */
export function Voice({ store, entry }) {
  const [voices, tell] = useState([]);
  useEffect(() => {
    const path = `/v1/audio/voices?model=${encodeURIComponent(entry.id)}`;
    // A failure is no harm: without a name the model's own voice is used.
    if (entry.capabilities.includes("speech")) api.json(path).then((told) => tell(told.voices), () => {});
  }, [entry.id]);
  return html`<${Choice} label="Voice" value=${store.state.voice} options=${[["", "the model's own"], ...voices]}
    choose=${(voice) => store.change({ voice })} />`;
}

/** A button that chooses files. */
export function FilePicker({ text, label, choose, ...rest }) {
  const chosen = ({ target }) => {
    choose([...target.files]);
    target.value = ""; // so that the same file can be chosen again
  };
  return html`<label class="button pick">${text}<input type="file" aria-label=${label ?? text} ...${rest}
    onChange=${chosen} /></label>`;
}

// ---------------------------------------------------------------- what was said
/** All that was said, in order; it follows what comes, unless its reader is further up. */
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
