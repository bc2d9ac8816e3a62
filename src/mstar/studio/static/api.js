// HTTP client of the studio: JSON, raw responses, server-sent events and WebSockets, with the key of the sign-in.
// It shows nothing: callers display errors.

const STORAGE_KEY = "mstar-key";
/** Set by the page if the server has API keys: without a key, requests fail locally instead of with a 401. */
const NEEDS_KEY = document.querySelector('meta[name="mstar-needs-key"]') !== null;
const UNAUTHENTICATED = ["an API key is required", { status: 401, code: "invalid_api_key" }];
const keyListeners = new Set();

/** An error response, or a network error with `status` 0. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, retryAfter });
  }
}

async function errorFrom(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // A proxy can response without JSON; the status is enough.
  }
  const wait = response.headers.get("Retry-After");
  const message = error.message ?? `the server returned status ${response.status} ${response.statusText}`.trim();
  return new ApiError(message, { status: response.status, code: error.code ?? "", retryAfter: wait ? Number(wait) : null });
}

function request({ method, body, form, signal, headers }) {
  const sent = new Headers(headers);
  if (api.key) sent.set("Authorization", `Bearer ${api.key}`);
  if (body !== undefined && !form) sent.set("Content-Type", "application/json");
  const content = form ?? (body === undefined ? undefined : JSON.stringify(body));
  const verb = method ?? (content === undefined ? "GET" : "POST");
  const keepalive = verb === "DELETE"; // deletes are sent even while the page is closed
  return { method: verb, headers: sent, body: content, signal, keepalive };
}

function notify(change) {
  api.isKeyRequired = change === "required";
  for (const listener of keyListeners) listener(change);
}

function withSignIn(error) {
  if (error.status === 401) notify("required");
  return error;
}

async function raw(path, options = {}) {
  if (NEEDS_KEY && !api.key) throw withSignIn(new ApiError(...UNAUTHENTICATED));
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...request(options) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server cannot be reached", { code: "unreachable" });
  }
  if (response.ok) return response;
  throw withSignIn(await errorFrom(response));
}

/** Parse one server-sent event. Null: only a comment. */
function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  if (!data.length) return null;
  const text = data.join("\n");
  return { event: name, data: text === "[DONE]" ? text : JSON.parse(text) };
}

async function* stream(path, options = {}) {
  const reader = (await raw(path, options)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      // A \r at the end can be half of \r\n: it stays until the other half arrives.
      rest = (rest + (value ?? "")).replace(/\r\n/g, "\n");
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parseEvent(block);
        if (event) yield event;
      }
      if (done) return;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("the connection was lost before the response was complete", { code: "unreachable" });
  } finally {
    reader.cancel().catch(() => {});
  }
}

function encodeKey(key) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  return btoa(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

function socket(path, query = {}) {
  const address = new URL(path, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  for (const [name, value] of Object.entries(query)) address.searchParams.set(name, value);
  // A browser cannot set headers of a WebSocket, so the key is sent as a subprotocol.
  return api.key ? new WebSocket(address, ["mstar", `mstar-key.${encodeKey(api.key)}`]) : new WebSocket(address);
}

export const api = {
  key: sessionStorage.getItem(STORAGE_KEY) ?? "",
  isKeyRequired: false,
  raw,
  stream,
  socket,
  json: async (path, options) => (await raw(path, options)).json(),

  signIn(key) {
    api.key = key;
    sessionStorage.setItem(STORAGE_KEY, key);
    notify("in");
  },

  signOut() {
    api.key = "";
    sessionStorage.removeItem(STORAGE_KEY);
    notify("out");
  },

  /** `listener` is called with "required", "in" or "out". Returns a function that unsubscribes. */
  onKey(listener) {
    keyListeners.add(listener);
    return () => keyListeners.delete(listener);
  },
};
