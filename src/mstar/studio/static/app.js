// App shell of the studio: header, hash routing, keyboard shortcuts, sign-in and the startup page.
// Each page is its own module, imported when it is first opened.

import { api } from "./api.js";
import { useLive } from "./live.js";
import { Login } from "./login.js";
import { ProgressBar, Dialog, ErrorMessage } from "./components.js";
import { StartupPage } from "./startup.js";
import { Theme } from "./theme.js";
import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";

const PAGES = { overview: "Overview", graph: "Graph", play: "Play", requests: "Requests", models: "Models" };
const KEYS = { o: "overview", g: "graph", p: "play", r: "requests", m: "models" };

const go = (hash) => {
  location.hash = hash;
};

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  return name in PAGES ? { name, rest } : { name: "overview", rest: [] };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // malformed percent-encoding
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

/** Whether a key is required, and the number of sign-ins and sign-outs: each one remounts the page. */
function useKey() {
  const [key, update] = useState({ isRequired: false, sessions: 0 });
  useEffect(() => {
    const onChange = (change) =>
      update(({ sessions }) =>
        change === "required" ? { isRequired: true, sessions } : { isRequired: false, sessions: sessions + 1 },
      );
    // Components can send requests before this effect subscribes.
    if (api.isKeyRequired) onChange("required");
    return api.onKey(onChange);
  }, []);
  return key;
}

function useKeys(show) {
  useEffect(() => {
    const onKeyDown = (event) => {
      const inField = event.target.closest?.("input, textarea, select, [contenteditable], dialog");
      if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") show(true);
      else if (KEYS[event.key]) go(`#/${KEYS[event.key]}`);
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

function Shortcuts({ close }) {
  const one = ([key, name]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${PAGES[name]}</dd></div>`;
  return html`<${Dialog} title="Keyboard shortcuts" close=${close}>
    <dl class="keys">
      ${Object.entries(KEYS).map(one)}
      <div><dt><kbd>?</kbd></dt><dd>Show keyboard shortcuts</dd></div>
      <div><dt><kbd>Esc</kbd></dt><dd>Close a dialog</dd></div>
    </dl>
    <button class="button" type="button" autofocus onClick=${close}>Close</button>
  <//>`;
}

const LOOKS = { ready: "good", draining: "warn" };

function Phase() {
  const phase = useLive((state) => state.phase?.name ?? "");
  const problem = useLive(({ error }) => error && (error.status === 401 ? "signed out" : "unreachable"));
  const running = useLive((state) => state.requests.size);
  const text = problem || phase || "connecting";
  return html`<span class="phase">
    <span class="tag ${problem ? "bad" : LOOKS[phase] ?? ""}" role="status">${text}</span>
    <span class="soft count"><b>${running}</b> running</span>
  </span>`;
}

function Header({ name, help }) {
  const link = ([id, text]) =>
    html`<a key=${id} href=${`#/${id}`} aria-current=${id === name ? "page" : undefined}>${text}</a>`;
  return html`<header class="head">
    <a class="brand" href="#/overview">mstar studio</a>
    <nav aria-label="Pages">${Object.entries(PAGES).map(link)}</nav>
    <${Phase} />
    <span class="row tools">
      <${Theme} />
      <button class="button quiet" type="button" aria-label="Keyboard shortcuts" title="Keyboard shortcuts" onClick=${help}>?</button>
      ${api.key && html`<button class="button quiet" type="button" onClick=${() => api.signOut()}>Sign out</button>`}
    </span>
  </header>`;
}

/** The served models, fetched again after a sign-in and when the server has started. */
function useModels(sessions, isStarting) {
  const [result, setResult] = useState({ models: null, error: null });
  const [tries, setTries] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    api.json("/v1/models", { signal: abort.signal }).then(
      ({ data }) => setResult({ models: data, error: null }),
      (error) => abort.signal.aborted || setResult((last) => ({ ...last, error })),
    );
    return () => abort.abort();
  }, [sessions, isStarting, tries]);
  return { ...result, refresh: () => setTries((count) => count + 1) };
}

/** A page's component, once its module is loaded. */
function useModule(name) {
  const [result, setResult] = useState({});
  useEffect(() => {
    let current = true;
    import(`./${name}.js`).then(
      (module) => current && setResult({ name, Page: module.default }),
      (error) => current && setResult({ name, error }),
    );
    return () => {
      current = false;
    };
  }, [name]);
  return result.name === name ? result : {};
}

function Page({ name, rest, models, refresh }) {
  const { Page: Component, error } = useModule(name);
  const what = `Loading the page ${PAGES[name]} failed`;
  if (error) return html`<${ErrorMessage} what=${what} error=${error} retry=${() => location.reload()} />`;
  if (!Component) return html`<${ProgressBar} text="Loading…" />`;
  return html`<${Component} models=${models} rest=${rest} go=${go} refresh=${refresh} />`;
}

function TwinNotice() {
  return html`<p class="tag warn" role="status">Twin: this server has no weights, and all outputs are synthetic.</p>`;
}

function Main({ at, sessions }) {
  const phase = useLive((state) => state.phase?.name);
  const isReady = phase === "ready" || phase === "draining";
  const { models, error, refresh } = useModels(sessions, Boolean(phase) && !isReady);
  // The startup page shows only before the first "ready": a worker restart later is shown in the page itself.
  const wasReady = useRef(false);
  wasReady.current ||= isReady;
  if (phase && !wasReady.current) return html`<${StartupPage} />`;
  if (error?.status === 401) return html`<p class="note">Sign in to see this server.</p>`;
  if (!models && error) return html`<${ErrorMessage} error=${error} retry=${refresh} />`;
  if (!models) return html`<${ProgressBar} text="Connecting…" />`;
  return html`${models.some(({ twin }) => twin) && html`<${TwinNotice} />`}
    <${Page} key=${sessions} ...${at} models=${models} refresh=${refresh} />`;
}

function App() {
  const at = useRoute();
  const { isRequired, sessions } = useKey();
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
    <a class="skip" href="#main" onClick=${skip}>Skip to main content</a>
    <${Header} name=${at.name} help=${() => show(true)} />
    <main id="main" tabindex="-1" class=${`page-${at.name}`}><${Main} at=${at} sessions=${sessions} /></main>
    ${help && html`<${Shortcuts} close=${() => show(false)} />`}
    ${isRequired && html`<${Login} />`}
  `;
}

const root = document.getElementById("studio");
root.textContent = "";
render(html`<${App} />`, root);
