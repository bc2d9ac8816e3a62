// Talks with the server: JSON, whole answers, server-sent events and sockets, all with the key that was signed in with.
// It shows nothing; who calls it shows what failed.

const KEPT = "mstar-key";
/** The page says so where a server has keys: then nothing is asked for in vain before somebody has signed in. */
const NEEDS_KEY = document.querySelector('meta[name="mstar-needs-key"]') !== null;
const UNSIGNED = ["a valid API key is needed", { status: 401, code: "invalid_api_key" }];
const watchers = new Set();

/** What the server refused, or what came between: `status` is 0 when it was not reached. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, retryAfter });
  }
}

async function failure(answer) {
  const text = await answer.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // A proxy in between answers in its own words; the status says enough.
  }
  const wait = answer.headers.get("Retry-After");
  const message = error.message ?? `the server answered ${answer.status} ${answer.statusText}`.trim();
  return new ApiError(message, { status: answer.status, code: error.code ?? "", retryAfter: wait ? Number(wait) : null });
}

function request({ method, body, form, signal, headers }) {
  const sent = new Headers(headers);
  if (api.key) sent.set("Authorization", `Bearer ${api.key}`);
  if (body !== undefined && !form) sent.set("Content-Type", "application/json");
  const content = form ?? (body === undefined ? undefined : JSON.stringify(body));
  const verb = method ?? (content === undefined ? "GET" : "POST");
  const keepalive = verb === "DELETE"; // what is over is told even while the page is left
  return { method: verb, headers: sent, body: content, signal, keepalive };
}

function tell(what) {
  api.isKeyWanted = what === "wanted";
  for (const told of watchers) told(what);
}

function refused(failed) {
  if (failed.status === 401) tell("wanted");
  return failed;
}

async function raw(path, options = {}) {
  if (NEEDS_KEY && !api.key) throw refused(new ApiError(...UNSIGNED));
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...request(options) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server cannot be reached", { code: "unreachable" });
  }
  if (answer.ok) return answer;
  throw refused(await failure(answer));
}

/** One event from its lines, or null when there was only a comment. */
function event(block) {
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
      // A lone \r at the end may be half of \r\n: it stays until the other half is there.
      rest = (rest + (value ?? "")).replace(/\r\n/g, "\n");
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const found = event(block);
        if (found) yield found;
      }
      if (done) return;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("the connection was lost before the answer was complete", { code: "unreachable" });
  } finally {
    reader.cancel().catch(() => {});
  }
}

function encoded(key) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  return btoa(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

function socket(path, query = {}) {
  const address = new URL(path, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  for (const [name, value] of Object.entries(query)) address.searchParams.set(name, value);
  // A browser cannot set headers for a socket, so the key goes where it can put something.
  return api.key ? new WebSocket(address, ["mstar", `mstar-key.${encoded(api.key)}`]) : new WebSocket(address);
}

export const api = {
  key: sessionStorage.getItem(KEPT) ?? "",
  isKeyWanted: false,
  raw,
  stream,
  socket,
  json: async (path, options) => (await raw(path, options)).json(),

  signIn(key) {
    api.key = key;
    sessionStorage.setItem(KEPT, key);
    tell("in");
  },

  signOut() {
    api.key = "";
    sessionStorage.removeItem(KEPT);
    tell("out");
  },

  /** `told` is called with "wanted" (a key is needed), "in" or "out". Gives back what ends it. */
  onKey(told) {
    watchers.add(told);
    return () => watchers.delete(told);
  },
};
