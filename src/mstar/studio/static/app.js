// The frame of the studio: header, routes by hash, keys, sign-in, and what is shown while the server starts.
// What a page shows is in the page's own module, imported when it is first opened.

import { api } from "./api.js";
import { useLive } from "./live.js";
import { Login } from "./login.js";
import { ProgressBar, Dialog, ErrorMessage } from "./components.js";
import { StartupPage } from "./startup.js";
import { Theme } from "./theme.js";
import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

const PAGES = { graph: "Graph", play: "Play", requests: "Requests", models: "Models" };
const KEYS = { g: "graph", p: "play", r: "requests", m: "models" };

const go = (hash) => {
  location.hash = hash;
};

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  return name in PAGES ? { name, rest } : { name: "graph", rest: [] };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // somebody typed a lone percent sign
  }
}

function useRoute() {
  const [at, move] = useState(route);
  useEffect(() => {
    const moved = () => move(route());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

/** Whether a key is wanted, and how often somebody signed in or out: pages begin anew then. */
function useKey() {
  const [key, turn] = useState({ wanted: false, turns: 0 });
  useEffect(() => {
    const heard = (what) =>
      turn(({ turns }) => (what === "wanted" ? { wanted: true, turns } : { wanted: false, turns: turns + 1 }));
    // What is on the page asks for things before this listens.
    if (api.isKeyWanted) heard("wanted");
    return api.onKey(heard);
  }, []);
  return key;
}

function useKeys(show) {
  useEffect(() => {
    const pressed = (event) => {
      const inField = event.target.closest?.("input, textarea, select, [contenteditable], dialog");
      if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") show(true);
      else if (KEYS[event.key]) go(`#/${KEYS[event.key]}`);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Keys({ close }) {
  const one = ([key, name]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${PAGES[name]}</dd></div>`;
  return html`<${Dialog} title="Keyboard" close=${close}>
    <dl class="keys">
      ${Object.entries(KEYS).map(one)}
      <div><dt><kbd>?</kbd></dt><dd>These keys</dd></div>
      <div><dt><kbd>Esc</kbd></dt><dd>Close a dialog</dd></div>
    </dl>
    <button class="button" type="button" autofocus onClick=${close}>Close</button>
  <//>`;
}

const LOOKS = { ready: "good", draining: "warn" };

function Phase() {
  const phase = useLive((state) => state.phase?.name ?? "");
  const lost = useLive(({ trouble }) => trouble && (trouble.status === 401 ? "signed out" : "not reached"));
  const live = useLive((state) => state.requests.size);
  const text = lost || phase || "connecting";
  return html`<span class="phase">
    <span class="tag ${lost ? "bad" : LOOKS[phase] ?? ""}" role="status">${text}</span>
    <span class="soft count"><b>${live}</b> live</span>
  </span>`;
}

function Header({ name, help }) {
  const link = ([id, text]) =>
    html`<a key=${id} href=${`#/${id}`} aria-current=${id === name ? "page" : undefined}>${text}</a>`;
  return html`<header class="head">
    <a class="brand" href="#/graph">mstar studio</a>
    <nav aria-label="Pages">${Object.entries(PAGES).map(link)}</nav>
    <${Phase} />
    <span class="row tools">
      <${Theme} />
      <button class="button quiet" type="button" aria-label="Keyboard" title="Keyboard" onClick=${help}>?</button>
      ${api.key && html`<button class="button quiet" type="button" onClick=${() => api.signOut()}>Sign out</button>`}
    </span>
  </header>`;
}

/** The models that are served; asked for again after a sign-in and when the server has started. */
function useModels(turns, isStarting) {
  const [got, put] = useState({ models: null, error: null });
  const [tries, again] = useState(0);
  useEffect(() => {
    const ended = new AbortController();
    api.json("/v1/models", { signal: ended.signal }).then(
      ({ data }) => put({ models: data, error: null }),
      (error) => ended.signal.aborted || put((last) => ({ ...last, error })),
    );
    return () => ended.abort();
  }, [turns, isStarting, tries]);
  return { ...got, refresh: () => again((count) => count + 1) };
}

/** A page's component, once its module is here. */
function useModule(name) {
  const [got, put] = useState({});
  useEffect(() => {
    let current = true;
    import(`./${name}.js`).then(
      (module) => current && put({ name, Page: module.default }),
      (error) => current && put({ name, error }),
    );
    return () => {
      current = false;
    };
  }, [name]);
  return got.name === name ? got : {};
}

function Page({ name, rest, models, refresh }) {
  const { Page: Found, error } = useModule(name);
  const what = `${PAGES[name]} could not be opened`;
  if (error) return html`<${ErrorMessage} what=${what} error=${error} retry=${() => location.reload()} />`;
  if (!Found) return html`<${ProgressBar} text="Opening…" />`;
  return html`<${Found} models=${models} rest=${rest} go=${go} refresh=${refresh} />`;
}

function Main({ at, turns }) {
  const phase = useLive((state) => state.phase?.name);
  const isReady = phase === "ready" || phase === "draining";
  const { models, error, refresh } = useModels(turns, Boolean(phase) && !isReady);
  // Once it was ready, a page stays: a worker that comes back is shown in the page, not instead of it.
  const was = useRef(false);
  was.current ||= isReady;
  if (phase && !was.current) return html`<${StartupPage} />`;
  if (error?.status === 401) return html`<p class="note">Sign in to see what this server does.</p>`;
  if (!models && error) return html`<${ErrorMessage} error=${error} retry=${refresh} />`;
  if (!models) return html`<${ProgressBar} text="Connecting…" />`;
  return html`<${Page} key=${turns} ...${at} models=${models} refresh=${refresh} />`;
}

function App() {
  const at = useRoute();
  const { wanted, turns } = useKey();
  const [help, show] = useState(false);
  useKeys(show);
  useEffect(() => {
    document.title = `${PAGES[at.name]} · mstar studio`;
  }, [at.name]);
  const skip = useMemo(
    () => (event) => {
      // The hash is the route, so the skip link moves the focus by hand.
      event.preventDefault();
      document.getElementById("main").focus();
    },
    [],
  );
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <${Header} name=${at.name} help=${() => show(true)} />
    <main id="main" tabindex="-1" class=${`page-${at.name}`}><${Main} at=${at} turns=${turns} /></main>
    ${help && html`<${Keys} close=${() => show(false)} />`}
    ${wanted && html`<${Login} />`}
  `;
}

const place = document.getElementById("studio");
place.textContent = "";
render(html`<${App} />`, place);
