// Chat panel: messages with image, audio and text attachments, and optional audio output.
// The conversation is stored here, not on the server: each request contains all earlier messages.

import { api } from "../api.js";
import { ErrorMessage, seconds, secondsSince } from "../components.js";
import { html, useState } from "../vendor/preact.js";
import { base64, decodeBase64 } from "./base64.js";
import { Log, FilePicker, ChatMessage, Store, Voice, ParamField, check, isAbort, newId, numbers, useStore } from "./store.js";
import { Code } from "./code.js";
import { Figures } from "./meter.js";
import { Player, canPlay } from "./player.js";
import { RATE, concatPcm, toPcm, toFloatSamples, wav } from "./audio.js";

const PATH = "/v1/chat/completions";

// ---------------------------------------------------------------- request
/** A file as a content part of a message. */
export async function toContentPart(file) {
  const [kind, form] = file.type.split("/");
  if (kind === "image" || kind === "audio") {
    const data = base64(new Uint8Array(await file.arrayBuffer()));
    const url = `data:${file.type};base64,${data}`;
    if (kind === "image") return { type: "image_url", image_url: { url } };
    const format = /wav/.test(form) ? "wav" : /^(mpeg|mp3)$/.test(form) ? "mp3" : null;
    return format ? { type: "input_audio", input_audio: { data, format } } : { type: "audio_url", audio_url: { url } };
  }
  const text = await file.text();
  if (text.includes("\0")) throw new Error(`${file.name} is not an image, audio or text file. Choose another file.`);
  return { type: "text", text: `${file.name}:\n${text}\n` };
}

function userMessage({ text, files }) {
  if (!files.length) return { role: "user", content: text };
  return { role: "user", content: [...files.map((one) => one.part), ...(text ? [{ type: "text", text }] : [])] };
}

export function requestBody(model, { system, temperature, maxTokens, seed, speaks, voice }, exchanges, prompt) {
  const history = exchanges
    .filter((one) => one.answer)
    .flatMap((one) => [userMessage(one), { role: "assistant", content: one.answer }]);
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  return {
    model,
    messages: [...first, ...history, userMessage(prompt)],
    stream: true,
    stream_options: { include_usage: true },
    ...numbers({ temperature, max_completion_tokens: maxTokens, seed }),
    ...(speaks && { modalities: ["text", "audio"], audio: { format: "pcm16", ...(voice && { voice }) } }),
  };
}

// ---------------------------------------------------------------- state
class ChatStore extends Store {
  constructor(model) {
    const params = { system: "", temperature: "", maxTokens: "", seed: "", speaks: false, voice: "" };
    super(model, { ...params, exchanges: [], text: "", files: [] });
    this.player = new Player((report) => this.change({ report }));
  }

  async attach(files) {
    for (const file of files) {
      try {
        const one = { name: file.name, type: file.type, part: await toContentPart(file), url: URL.createObjectURL(file) };
        this.change({ files: [...this.state.files, one], error: null });
      } catch (error) {
        this.change({ error });
      }
    }
  }

  stop() {
    this.state.cancel?.abort();
    this.player.stop();
  }

  /** Send the composed message, or retry a failed exchange. */
  async send(retried) {
    const { exchanges, text, files, speaks } = this.state;
    const before = exchanges.filter((one) => one !== retried);
    const prompt = retried ?? { text: text.trim(), files };
    const one = { text: prompt.text, files: prompt.files, id: newId(), answer: "", pieces: 0 };
    const cancel = new AbortController();
    const body = requestBody(this.model, this.state, before, one);
    this.change({ exchanges: [...before, one], cancel, error: null, report: null });
    if (!retried) this.change({ text: "", files: [] });
    this.player.stop();
    try {
      if (speaks && canPlay()) await this.player.open();
      await this.#follow(one, body, cancel.signal);
    } catch (error) {
      if (isAbort(error)) one.reason = "stopped";
      else one.error = error;
    }
    this.player.end();
    if (one.pcm) one.sound = URL.createObjectURL(wav(concatPcm(one.pcm)));
    one.pcm = null;
    this.change({ cancel: null });
  }

  async #follow(one, body, signal) {
    const startedAt = performance.now();
    for await (const event of api.stream(PATH, { body, signal, headers: { "X-Request-Id": one.id } })) {
      const data = check(event);
      if (data === "[DONE]") return;
      one.usage = data.usage ?? one.usage;
      if (data.choices[0]) this.#take(one, data.choices[0], secondsSince(startedAt));
      this.change({});
    }
  }

  #take(one, { delta, finish_reason: reason }, now) {
    one.reason = reason ?? one.reason;
    const text = delta.content || delta.audio?.transcript;
    if (text) {
      one.first ??= now;
      one.last = now;
      one.pieces += 1;
      one.answer += text;
    }
    if (!delta.audio?.data) return;
    if (!one.pcm) {
      one.pcm = [];
      one.firstSound = now;
      this.player.begin(RATE);
    }
    const pcm = toPcm(decodeBase64(delta.audio.data));
    one.pcm.push(pcm);
    this.player.push(toFloatSamples(pcm));
  }
}

// ---------------------------------------------------------------- view
function Files({ files, remove }) {
  const shown = ({ type, url, name }) =>
    type.startsWith("image/")
      ? html`<img src=${url} alt=${name} />`
      : type.startsWith("audio/")
        ? html`<audio controls src=${url} aria-label=${name}></audio>`
        : html`<span class="tag">${name}</span>`;
  const one = (file) => html`<li>${shown(file)}${remove && html`<button class="button quiet" type="button"
    aria-label=${`Remove ${file.name}`} onClick=${() => remove(file)}>Remove</button>`}</li>`;
  return files.length > 0 && html`<ul class="files">${files.map(one)}</ul>`;
}

function CopyAnswer({ text }) {
  const [label, setLabel] = useState("Copy");
  const copy = () => navigator.clipboard.writeText(text).then(() => setLabel("Copied"), () => setLabel("Not allowed"));
  // There is no clipboard outside a secure context.
  return navigator.clipboard && html`<button class="button quiet" type="button" onClick=${copy}>${label}</button>`;
}

const FINISH_REASONS = { length: "max tokens reached", stopped: "stopped", tool_calls: "tool call" };

function figures({ usage, pieces, first, last, firstSound, reason }, report) {
  const tokens = usage?.completion_tokens_details?.text_tokens ?? pieces;
  return [
    ["TTFT", first && seconds(first), "time to first token"],
    ["tokens/s", tokens > 1 && last > first ? ((tokens - 1) / (last - first)).toFixed(1) : null, "after the first token"],
    ["tokens", usage && `${usage.prompt_tokens} in, ${usage.completion_tokens} out`],
    ["first audio", firstSound && seconds(firstSound)],
    ["underruns", firstSound && report?.underruns, "playback gaps: audio arrived too late"],
    ["finish reason", FINISH_REASONS[reason]],
  ];
}

function Exchange({ store, one }) {
  const { exchanges, cancel, report } = store.state;
  const isLast = one === exchanges.at(-1);
  const isLive = isLast && cancel;
  const retry = one.error && !cancel && (() => store.send(one));
  return html`<${ChatMessage}><${Files} files=${one.files} />${one.text && html`<p>${one.text}</p>`}<//>
    <${ChatMessage} who=${store.model} isLive=${isLive}>
      <p>${one.answer}${isLive && html`<i class="caret"></i>`}</p>
      ${one.sound && html`<audio controls src=${one.sound} aria-label="Response audio"></audio>`}
      <${ErrorMessage} error=${one.error} what="Request failed" retry=${retry} />
      <div class="row" data-samples=${isLast && report?.samples}>
        <${Figures} items=${figures(one, isLast && report)} id=${one.id} />
        ${one.answer && !isLive && html`<${CopyAnswer} text=${one.answer} />`}</div>
    <//>`;
}

function Composer({ store }) {
  const { text, files, cancel, error, exchanges } = store.state;
  const canAsk = !cancel && (text.trim() || files.length);
  const send = (event) => {
    event.preventDefault();
    if (canAsk) store.send();
  };
  const pressed = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event);
  const reset = () => {
    store.stop();
    store.change({ exchanges: [] });
  };
  return html`<form class="composer" onSubmit=${send}>
    <${ErrorMessage} error=${error} what="File not attached" />
    <${Files} files=${files} remove=${(file) => store.change({ files: files.filter((one) => one !== file) })} />
    <textarea aria-label="Message" rows="2" placeholder="Message. Enter sends, Shift+Enter adds a line."
      value=${text} onInput=${(event) => store.change({ text: event.target.value })} onKeyDown=${pressed}></textarea>
    <div class="row">
      ${cancel
        ? html`<button class="button main" type="button" onClick=${() => store.stop()}>Stop</button>`
        : html`<button class="button main" disabled=${!canAsk}>Send</button>`}
      <${FilePicker} text="Attach" label="Attach images, audio or text files" accept="image/*,audio/*,text/*,.md,.json,.csv,.py"
        multiple choose=${(chosen) => store.attach(chosen)} />
      <button class="button quiet end" type="button" disabled=${!exchanges.length} onClick=${reset}
        >New conversation</button>
    </div>
  </form>`;
}

function ParamsPanel({ store, entry }) {
  const { speaks } = store.state;
  return html`<section class="panel stack" aria-label="Parameters">
    <${ParamField} store=${store} name="system" label="System prompt" tag="textarea" rows="3" placeholder="none" />
    <div class="params">
      <${ParamField} store=${store} name="temperature" label="Temperature" type="number" min="0" max="2" step="0.1"
        placeholder="model default" />
      <${ParamField} store=${store} name="maxTokens" label="Max tokens" type="number" min="1" placeholder="1024" />
      <${ParamField} store=${store} name="seed" label="Seed" type="number" placeholder="any" />
    </div>
    <label class="check"><input type="checkbox" checked=${speaks}
      onChange=${(event) => store.change({ speaks: event.target.checked })} /> Audio output</label>
    ${speaks && html`<${Voice} store=${store} entry=${entry} />`}
    ${speaks && !canPlay() && html`<p class="note">Without https or localhost, audio plays only when the response is
      complete.</p>`}
  </section>`;
}

/** The body of the next request, or of the last one if the composer is empty. */
function shownBody({ model, state }) {
  const { exchanges, text, files } = state;
  const isWritten = text.trim() || files.length || !exchanges.length;
  const prompt = isWritten ? { text: text.trim() || "Good morning.", files } : exchanges.at(-1);
  return requestBody(model, state, isWritten ? exchanges : exchanges.slice(0, -1), prompt);
}

export default function Chat({ model, entry }) {
  const store = useStore(ChatStore, model);
  return html`<div class="play">
    <section class="panel chat" aria-label="Chat">
      <${Log} label="Chat log" empty="Send a message. The response streams in here.">
        ${store.state.exchanges.map((one) => html`<${Exchange} key=${one.id} store=${store} one=${one} />`)}
      <//>
      <${Composer} store=${store} />
    </section>
    <aside class="stack">
      <${ParamsPanel} store=${store} entry=${entry} />
      <${Code} call=${{ method: "POST", path: PATH, body: shownBody(store), reads: "events" }} />
    </aside>
  </div>`;
}
