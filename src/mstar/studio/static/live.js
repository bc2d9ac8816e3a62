// What the server is doing now: follows /v1/events while somebody looks, and tells components and canvases.
// It keeps the last state only; it draws nothing and remembers no past.

import { api } from "./api.js";
import { useEffect, useReducer, useRef } from "./vendor/preact.js";

const KEPT = ["phase", "workers", "ops", "streams", "transfers"];
const listeners = new Set();
let following = null;

/**
 * `requests` is a Map by rid of all that live, each with `since`, when it came;
 * `trouble` is the ApiError of the last try, null while events come.
 */
let state = {
  t: 0,
  phase: null,
  workers: [],
  ops: [],
  streams: [],
  transfers: [],
  queue: 0,
  requests: new Map(),
  trouble: null,
};

function merged(tick) {
  const next = { ...state, t: tick.t, queue: tick.queue, trouble: null };
  // A part that says the same stays the same object, so that nothing is drawn again for it.
  for (const name of KEPT) if (JSON.stringify(tick[name]) !== JSON.stringify(state[name])) next[name] = tick[name];
  if (tick.full || tick.requests.length || tick.ended.length) {
    next.requests = new Map(tick.full ? [] : state.requests);
    for (const request of tick.requests) next.requests.set(request.rid, { ...request, since: tick.t - request.age });
    for (const rid of tick.ended) next.requests.delete(rid);
  }
  return next;
}

function tell(next, tick) {
  state = next;
  for (const listener of [...listeners]) listener(tick);
}

const pause = (ms, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()));
  });

async function follow(signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
    try {
      for await (const { event, data } of api.stream("/v1/events", { signal })) {
        if (event === "tick") tell(merged(data), data);
        wait = 250;
      }
    } catch (error) {
      if (signal.aborted) return;
      tell({ ...state, trouble: error }, null);
      // Without a key there is nothing to try again; signing in begins anew.
      if (error.status === 401) return;
    }
    await pause(wait, signal);
  }
}

function settle() {
  const wanted = listeners.size > 0 && document.visibilityState === "visible";
  if (wanted && !following) {
    following = new AbortController();
    follow(following.signal);
  } else if (!wanted && following) {
    following.abort();
    following = null;
  }
}

function again() {
  following?.abort();
  following = null;
  settle();
}

document.addEventListener("visibilitychange", settle);
api.onKey((what) => what !== "wanted" && again());

function listen(listener) {
  listeners.add(listener);
  settle();
  return () => {
    listeners.delete(listener);
    // Going from page to page takes a moment in which nobody listens; the stream outlives it.
    setTimeout(settle, 500);
  };
}

export const live = {
  /** `fn(tick)` for each tick as it came. Gives back what ends it. */
  on: (fn) => listen((tick) => tick && fn(tick)),
  /** The merged state as of now. */
  now: () => state,
};

/** `select(state)`, kept up to date; draws again when what it selects is another object or value. */
export function useLive(select) {
  const [, draw] = useReducer((count) => count + 1, 0);
  const chosen = useRef();
  const selecting = useRef(select);
  selecting.current = select;
  chosen.current = select(state);
  useEffect(() => {
    const look = () => selecting.current(state) !== chosen.current && draw();
    look();
    return listen(look);
  }, []);
  return chosen.current;
}
