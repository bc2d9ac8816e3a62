// Conversation: the microphone and a model over one WebSocket, by turns, in speech. Who begins to speak interrupts.
// The call is `RealtimeStore`, below the page: it goes on while its user looks at another one.

import { api, ApiError } from "../api.js";
import { Choice, ErrorMessage, seconds, secondsSince } from "../components.js";
import { html, useState } from "../vendor/preact.js";
import { base64, decodeBase64 } from "./base64.js";
import { Log, FilePicker, ChatMessage, Store, Voice, ParamField, failed, useStore } from "./store.js";
import { Code } from "./code.js";
import { Figures, Level } from "./meter.js";
import { canRecord, record, replay } from "./microphone.js";
import { SECURE_CONTEXT_HINT, Player, canPlay } from "./player.js";
import { RATE, toPcm, toFloatSamples } from "./audio.js";

const PATH = "/v1/realtime";
const PHASES = { off: "Not connected", connecting: "Connecting", listening: "Listening", hearing: "You speak",
  thinking: "Thinking", speaking: "Speaking" };

/** What the session is set to. `transcriptionModel` is the model that writes down what the client says, if there is one. */
export const sessionConfig = ({ instructions, voice, answers, silence }, transcriptionModel) => ({
  type: "realtime",
  output_modalities: [answers],
  ...(instructions.trim() && { instructions }),
  audio: {
    input: {
      turn_detection: { type: "server_vad", silence_duration_ms: Number(silence) },
      ...(transcriptionModel && { transcription: { model: transcriptionModel } }),
    },
    ...(voice && { output: { voice } }),
  },
});

// ---------------------------------------------------------------- the call
class RealtimeStore extends Store {
  #socket = null;
  #endSource = null;
  #isAnswering = false;
  #playing = null; // the answer that is heard
  #interrupted = new Set(); // answers that are not to be heard any more, though some of them may still be under way to here
  #asked = null; // when the client's turn ended

  constructor(model) {
    const wishes = { instructions: "", voice: "", answers: "audio", silence: "500" };
    super(model, { ...wishes, phase: "off", lines: [], level: 0, underruns: 0, samples: 0 });
    this.player = new Player((report) => this.#played(report));
  }

  // -------------------------------------------------------------- its beginning and end
  /** Begins the call if it is not there. */
  async #open() {
    if (this.#socket) return;
    this.change({ phase: "connecting", lines: [], report: null, answered: null, id: null, underruns: 0, samples: 0 });
    if (canPlay()) await this.player.open();
    const socket = (this.#socket = api.socket(PATH, { model: this.model }));
    await new Promise((resolve, reject) => {
      socket.onmessage = ({ data }) => {
        const event = JSON.parse(data);
        if (event.type === "session.created") resolve();
        this[event.type]?.(event);
      };
      socket.onclose = ({ code, reason }) => {
        const why = reason || (code === 1006 ? "the connection was lost, or refused" : `the server ended it (${code})`);
        const error = new ApiError(why, { code: "unreachable" });
        reject(error);
        if (this.#socket !== socket) return; // ended from here
        this.stop();
        this.change({ error });
      };
    });
    this.#send("session.update", { session: sessionConfig(this.state, this.transcriptionModel) });
    this.change({ phase: "listening" });
  }

  async #within(act) {
    this.change({ error: null });
    try {
      await this.#open();
      await act();
    } catch (error) {
      if (!this.state.lines.length) this.stop();
      this.change({ error });
    }
  }

  /** Listens to the microphone; or to a file in its stead, then to silence, so that the end is noticed. */
  listen(file) {
    const hear = (pcm, level) => {
      this.#send("input_audio_buffer.append", { audio: base64(new Uint8Array(pcm.buffer)) });
      this.change({ level });
    };
    const over = () => this.change({ source: null, level: 0 });
    return this.#within(async () => {
      this.#endSource?.();
      this.#endSource = await (file ? replay(file, hear, over, Number(this.state.silence) + 400) : record(hear));
      this.change({ source: file?.name ?? "You" });
    });
  }

  write(text) {
    return this.#within(async () => {
      if (this.#isAnswering) this.#send("response.cancel"); // first: an answer is cut when it has ended
      await this.#interrupt();
      const item = { type: "message", role: "user", content: [{ type: "input_text", text }] };
      this.#send("conversation.item.create", { item });
      this.#send("response.create");
      this["input_audio_buffer.speech_stopped"]();
    });
  }

  stop() {
    const socket = this.#socket;
    this.#socket = this.#playing = null;
    this.#isAnswering = false;
    this.#endSource?.();
    this.#endSource = null;
    this.player.stop();
    socket?.close();
    this.change({ phase: "off", source: null, level: 0 });
  }

  #send(type, fields) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ type, ...fields }));
  }

  /** Falls silent, and tells the server how much of the answer was heard. */
  async #interrupt() {
    const item_id = this.#playing;
    if (!item_id || this.player.report.isOver) return;
    this.#interrupted.add(item_id);
    this.#playing = null;
    const audio_end_ms = await this.player.stop();
    this.#send("conversation.item.truncate", { item_id, content_index: 0, audio_end_ms });
  }

  #line(id, fields) {
    const { lines } = this.state;
    const isKnown = lines.some((one) => one.id === id);
    const all = isKnown ? lines : [...lines, { id, text: "" }];
    this.change({ lines: all.map((one) => (one.id === id ? { ...one, ...fields(one) } : one)) });
  }

  #answered() {
    if (this.#asked !== null) this.change({ answered: secondsSince(this.#asked) });
    this.#asked = null;
    if (this.state.phase === "thinking") this.change({ phase: "speaking" });
  }

  #played(report) {
    this.change({ report });
    if (!report.isOver) return;
    this.change({ underruns: this.state.underruns + report.underruns, samples: this.state.samples + report.samples });
    this.#rest();
  }

  #rest() {
    const { phase } = this.state;
    if ((phase === "speaking" || phase === "thinking") && !this.#isAnswering) this.change({ phase: "listening" });
  }

  /** A browser is not told the id of a socket's request: it is the newest call that goes on. */
  async #findId() {
    const { data } = await api.json("/v1/requests").catch(() => ({ data: [] }));
    const own = data.find((one) => one.endpoint === PATH && one.model === this.model && one.status === null);
    if (own) this.change({ id: own.id });
  }

  // -------------------------------------------------------------- what the server tells, by its events' names
  "input_audio_buffer.speech_started"({ item_id }) {
    this.#line(item_id, () => ({ isMine: true }));
    this.change({ phase: "hearing" });
    this.#interrupt();
  }

  "input_audio_buffer.speech_stopped"() {
    this.change({ phase: "thinking" });
    this.#asked = performance.now();
  }

  "conversation.item.added"({ item: { id, role, content = [] } }) {
    const text = content.map((one) => one.text ?? one.transcript ?? "").join("");
    if (role) this.#line(id, () => ({ isMine: role === "user", text }));
  }

  "conversation.item.input_audio_transcription.completed"({ item_id, transcript }) {
    this.#line(item_id, () => ({ text: transcript, isWritten: true }));
  }

  "conversation.item.input_audio_transcription.failed"({ item_id, error }) {
    this.#line(item_id, () => ({ note: error.message }));
  }

  "response.created"() {
    this.#isAnswering = true;
    if (this.state.phase === "listening") this.change({ phase: "thinking" });
    if (!this.state.id) this.#findId();
  }

  "response.output_audio_transcript.delta"({ item_id, delta }) {
    this.#line(item_id, ({ text }) => ({ text: text + delta }));
  }

  "response.output_text.delta"(event) {
    this["response.output_audio_transcript.delta"](event);
    this.#answered();
  }

  "response.output_audio.delta"({ item_id, delta }) {
    if (this.#interrupted.has(item_id)) return;
    if (this.#playing !== item_id) this.player.begin(RATE);
    this.#playing = item_id;
    this.player.push(toFloatSamples(toPcm(decodeBase64(delta))));
    this.#answered();
  }

  "conversation.item.truncated"({ item_id }) {
    this.#line(item_id, () => ({ isCut: true }));
    this.#send("conversation.item.retrieve", { item_id }); // what is left of its text is what was heard
  }

  "conversation.item.retrieved"({ item: { id, content } }) {
    this.#line(id, () => ({ heard: content[0].transcript }));
  }

  "response.done"({ response }) {
    this.#isAnswering = false;
    this.player.end();
    if (response.status_details?.error) this.error(response.status_details);
    if (!this.#playing || this.player.report.isOver || !canPlay()) this.#rest();
  }

  error({ error }) {
    this.change({ error: failed(error) });
  }
}

// ---------------------------------------------------------------- what is seen
function Line({ line: { isMine, text, heard, isCut, isWritten, note }, model }) {
  const words = isCut && text.startsWith(heard ?? "?")
    ? html`${heard}<del>${text.slice(heard.length)}</del>`
    : text || (isMine && (isWritten ? "(nothing that could be understood)" : "…"));
  return html`<${ChatMessage} who=${isMine ? undefined : model}><p>${words}</p>
    ${isCut && html`<small>interrupted: what is struck out was not heard</small>`}<small>${note}</small><//>`;
}

function SessionStatus({ state: { phase, level, source, report, answered, id, underruns, samples } }) {
  return html`<div class="state">
    <strong class="phase-${phase}" role="status">${PHASES[phase]}</strong>
    <${Level} label=${source ?? "You"} value=${level} />
    <${Level} label="Answer" value=${report && !report.isOver ? report.level : 0} />
    <div data-samples=${samples}><${Figures} id=${id} items=${[
      ["response latency", answered && seconds(answered), "from the end of your turn to its first sound"],
      ["buffered", report && !report.isOver && `${Math.round(report.buffered)} ms`],
      ["played", report && seconds(report.played / 1000)],
      ["underruns", report && underruns + (report.isOver ? 0 : report.underruns), "gaps: sound was not made in time"],
    ]} /></div>
  </div>`;
}

function Controls({ store }) {
  const { phase, source } = store.state;
  const [text, set] = useState("");
  const write = (event) => {
    event.preventDefault();
    if (text.trim()) store.write(text.trim());
    set("");
  };
  return html`<div class="composer">
    <div class="row">
      <button class="button main" type="button" disabled=${source || !canRecord()}
        onClick=${() => store.listen()}>Talk</button>
      <${FilePicker} text="Send a file instead" accept="audio/*" choose=${([file]) => store.listen(file)} />
      <button class="button" type="button" disabled=${phase === "off"} onClick=${() => store.stop()}>End</button>
    </div>
    <form class="row text-input" onSubmit=${write}>
      <input type="text" aria-label="Text message" value=${text} placeholder="Or write"
        onInput=${(event) => set(event.target.value)} />
      <button class="button" disabled=${!text.trim()}>Send</button>
    </form>
    ${!canRecord() && html`<p class="note wrap">${SECURE_CONTEXT_HINT}</p>`}
  </div>`;
}

function ParamsPanel({ store, entry }) {
  const { phase, answers } = store.state;
  return html`<fieldset class="panel stack" disabled=${phase !== "off"}>
    <legend class="sr">Parameters</legend>
    <${ParamField} store=${store} name="instructions" label="Instructions" tag="textarea" rows="3" placeholder="none" />
    <${Choice} label="Answers" value=${answers} options=${[["audio", "in speech"], ["text", "in text"]]}
      choose=${(one) => store.change({ answers: one })} />
    <${Voice} store=${store} entry=${entry} />
    <${ParamField} store=${store} name="silence" label="Silence that ends a turn, in ms" type="number" min="20" max="10000" />
    ${phase !== "off" && html`<p class="note">These can be changed when the call has ended.</p>`}
  </fieldset>`;
}

export default function Conversation({ model, entry, models }) {
  const store = useStore(RealtimeStore, model);
  const { state } = store;
  store.transcriptionModel = [entry, ...models].find((one) => one.capabilities.includes("transcription"))?.id;
  const body = { type: "session.update", session: sessionConfig(state, store.transcriptionModel) };
  return html`<div class="play">
    <section class="panel chat" aria-label="Conversation">
      <${SessionStatus} state=${state} />
      <${Log} label="Chat log" empty="Press Talk and ask something. You may interrupt the answer.">
        ${state.lines.map((line) => html`<${Line} key=${line.id} line=${line} model=${model} />`)}
      <//>
      <${ErrorMessage} error=${state.error} what="The call" />
      <${Controls} store=${store} />
    </section>
    <aside class="stack">
      <${ParamsPanel} store=${store} entry=${entry} />
      <${Code} call=${{ method: "GET", path: PATH, query: { model }, body, reads: "socket" }} />
    </aside>
  </div>`;
}
