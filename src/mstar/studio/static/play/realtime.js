// Conversation panel: speech-to-speech over a Realtime API WebSocket, with voice activity detection and barge-in.
// `RealtimeStore` lives outside the page, so that the session continues while another page is open.

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
const PHASES = { off: "Not connected", connecting: "Connecting", listening: "Listening", hearing: "Speech detected",
  thinking: "Thinking", speaking: "Speaking" };

/** Session config. `transcriptionModel` transcribes the user's audio, if there is one. */
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

// ---------------------------------------------------------------- session
class RealtimeStore extends Store {
  #socket = null;
  #endSource = null;
  #isAnswering = false;
  #playing = null; // item id of the response that plays
  #interrupted = new Set(); // responses cut by the user, whose late audio is dropped
  #turnEndedAt = null; // end of the user's turn

  constructor(model) {
    const params = { instructions: "", voice: "", answers: "audio", silence: "500" };
    super(model, { ...params, phase: "off", lines: [], level: 0, underruns: 0, samples: 0 });
    this.player = new Player((report) => this.#played(report));
  }

  // -------------------------------------------------------------- lifecycle
  /** Open the session if it is not open. */
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
        const problem = reason || (code === 1006 ? "connection lost or refused" : `closed by the server (${code})`);
        const error = new ApiError(problem, { code: "unreachable" });
        reject(error);
        if (this.#socket !== socket) return; // closed by this page
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

  /** Send microphone audio, or a file followed by silence, so that the VAD detects the end. */
  listen(file) {
    const onFrame = (pcm, level) => {
      this.#send("input_audio_buffer.append", { audio: base64(new Uint8Array(pcm.buffer)) });
      this.change({ level });
    };
    const over = () => this.change({ source: null, level: 0 });
    return this.#within(async () => {
      this.#endSource?.();
      this.#endSource = await (file ? replay(file, onFrame, over, Number(this.state.silence) + 400) : record(onFrame));
      this.change({ source: file?.name ?? "You" });
    });
  }

  write(text) {
    return this.#within(async () => {
      if (this.#isAnswering) this.#send("response.cancel"); // first: a response is truncated after it has ended
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

  /** Stop playback, and report to the server how much was played. */
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
    if (this.#turnEndedAt !== null) this.change({ answered: secondsSince(this.#turnEndedAt) });
    this.#turnEndedAt = null;
    if (this.state.phase === "thinking") this.change({ phase: "speaking" });
  }

  #played(report) {
    this.change({ report });
    if (!report.isOver) return;
    this.change({ underruns: this.state.underruns + report.underruns, samples: this.state.samples + report.samples });
    this.#backToListening();
  }

  #backToListening() {
    const { phase } = this.state;
    if ((phase === "speaking" || phase === "thinking") && !this.#isAnswering) this.change({ phase: "listening" });
  }

  /** A browser cannot read the request id of a WebSocket: it is the newest running one. */
  async #findId() {
    const { data } = await api.json("/v1/requests").catch(() => ({ data: [] }));
    const own = data.find((one) => one.endpoint === PATH && one.model === this.model && one.status === null);
    if (own) this.change({ id: own.id });
  }

  // -------------------------------------------------------------- server events
  "input_audio_buffer.speech_started"({ item_id }) {
    this.#line(item_id, () => ({ isMine: true }));
    this.change({ phase: "hearing" });
    this.#interrupt();
  }

  "input_audio_buffer.speech_stopped"() {
    this.change({ phase: "thinking" });
    this.#turnEndedAt = performance.now();
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
    this.#send("conversation.item.retrieve", { item_id }); // the remaining text is what was played
  }

  "conversation.item.retrieved"({ item: { id, content } }) {
    this.#line(id, () => ({ playedText: content[0].transcript }));
  }

  "response.done"({ response }) {
    this.#isAnswering = false;
    this.player.end();
    if (response.status_details?.error) this.error(response.status_details);
    if (!this.#playing || this.player.report.isOver || !canPlay()) this.#backToListening();
  }

  error({ error }) {
    this.change({ error: failed(error) });
  }
}

// ---------------------------------------------------------------- view
function Line({ line: { isMine, text, playedText, isCut, isWritten, note }, model }) {
  const words = isCut && text.startsWith(playedText ?? "?")
    ? html`${playedText}<del>${text.slice(playedText.length)}</del>`
    : text || (isMine && (isWritten ? "(no speech recognized)" : "…"));
  return html`<${ChatMessage} who=${isMine ? undefined : model}><p>${words}</p>
    ${isCut && html`<small>interrupted: struck-out text was not played</small>`}<small>${note}</small><//>`;
}

function SessionStatus({ state: { phase, level, source, report, answered, id, underruns, samples } }) {
  return html`<div class="state">
    <strong class="phase-${phase}" role="status">${PHASES[phase]}</strong>
    <${Level} label=${source ?? "You"} value=${level} />
    <${Level} label="Response" value=${report && !report.isOver ? report.level : 0} />
    <div data-samples=${samples}><${Figures} id=${id} items=${[
      ["response latency", answered && seconds(answered), "from the end of your turn to the first audio"],
      ["buffered", report && !report.isOver && `${Math.round(report.buffered)} ms`],
      ["played", report && seconds(report.played / 1000)],
      ["underruns", report && underruns + (report.isOver ? 0 : report.underruns), "playback gaps: audio arrived too late"],
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
      <input type="text" aria-label="Text message" value=${text} placeholder="Or type a message"
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
    <${Choice} label="Output" value=${answers} options=${[["audio", "audio"], ["text", "text"]]}
      choose=${(one) => store.change({ answers: one })} />
    <${Voice} store=${store} entry=${entry} />
    <${ParamField} store=${store} name="silence" label="Silence that ends a turn (ms)" type="number" min="20" max="10000" />
    ${phase !== "off" && html`<p class="note">End the session to change these.</p>`}
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
      <${Log} label="Chat log" empty="Press Talk and speak. You can interrupt the response.">
        ${state.lines.map((line) => html`<${Line} key=${line.id} line=${line} model=${model} />`)}
      <//>
      <${ErrorMessage} error=${state.error} what="Session error" />
      <${Controls} store=${store} />
    </section>
    <aside class="stack">
      <${ParamsPanel} store=${store} entry=${entry} />
      <${Code} call=${{ method: "GET", path: PATH, query: { model }, body, reads: "socket" }} />
    </aside>
  </div>`;
}
