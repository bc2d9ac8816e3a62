// Live state of the server: follows the event stream /v1/events while the page is visible, and notifies subscribers.
// It keeps the latest state only, and draws nothing.

import { api } from "./api.js";
import { useEffect, useReducer, useRef } from "./vendor/preact.js";

const FIELDS = ["phase", "workers", "ops", "streams", "transfers"];
const listeners = new Set();
let following = null;

/**
 * `requests`: running requests by rid, each with `since`, its start time;
 * `error`: the ApiError of the last attempt, null while events arrive.
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
  error: null,
};

function merged(tick) {
  const next = { ...state, t: tick.t, queue: tick.queue, error: null };
  // An unchanged field keeps its object, so that its subscribers do not render again.
  for (const name of FIELDS) if (JSON.stringify(tick[name]) !== JSON.stringify(state[name])) next[name] = tick[name];
  if (tick.full || tick.requests.length || tick.ended.length) {
    next.requests = new Map(tick.full ? [] : state.requests);
    for (const request of tick.requests) next.requests.set(request.rid, { ...request, since: tick.t - request.age });
    for (const rid of tick.ended) next.requests.delete(rid);
  }
  return next;
}

function notify(next, tick) {
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
        if (event === "tick") notify(merged(data), data);
        wait = 250;
      }
    } catch (error) {
      if (signal.aborted) return;
      notify({ ...state, error }, null);
      // A retry is useless without a key; signing in restarts the stream.
      if (error.status === 401) return;
    }
    await pause(wait, signal);
  }
}

function updateSubscription() {
  const isNeeded = listeners.size > 0 && document.visibilityState === "visible";
  if (isNeeded && !following) {
    following = new AbortController();
    follow(following.signal);
  } else if (!isNeeded && following) {
    following.abort();
    following = null;
  }
}

function restart() {
  following?.abort();
  following = null;
  updateSubscription();
}

document.addEventListener("visibilitychange", updateSubscription);
api.onKey((change) => change !== "required" && restart());

function listen(listener) {
  listeners.add(listener);
  updateSubscription();
  return () => {
    listeners.delete(listener);
    // Delayed, so that the stream survives the moment between two pages.
    setTimeout(updateSubscription, 500);
  };
}

export const live = {
  /** Call `fn(tick)` for each tick. Returns a function that unsubscribes. */
  on: (fn) => listen((tick) => tick && fn(tick)),
  /** The current merged state. */
  now: () => state,
};

/** Hook that returns `select(state)` and renders again when it changes. */
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
