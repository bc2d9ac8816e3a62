// Transcription panel: audio from a file or the microphone, as streamed text or with timestamps.

import { api } from "../api.js";
import { Choice, ErrorMessage, bytes, seconds, secondsSince } from "../components.js";
import { html, useRef } from "../vendor/preact.js";
import { FilePicker, Store, ParamField, check, isAbort, newId, useStore } from "./store.js";
import { Code } from "./code.js";
import { Figures, Level } from "./meter.js";
import { canRecord, record } from "./microphone.js";
import { SECURE_CONTEXT_HINT } from "./player.js";
import { concatPcm, wav } from "./audio.js";

const PATH = "/v1/audio/transcriptions";
const EMPTY = { text: "", segments: [], id: null, error: null, first: null, took: null, length: null };

/** Form fields of the request: streamed text, or timestamps (which cannot be streamed). */
export function formFields(model, { language, answer }, file) {
  const how = answer === "times"
    ? [["response_format", "verbose_json"], ["timestamp_granularities[]", "segment"]]
    : [["stream", "true"]];
  return [["model", model], ...(language.trim() ? [["language", language.trim()]] : []), ...how, ["file", file]];
}

class TranscriptionStore extends Store {
  constructor(model) {
    super(model, { ...EMPTY, language: "", answer: "stream" });
  }

  take(file) {
    if (!file) return;
    if (this.state.sound) URL.revokeObjectURL(this.state.sound);
    this.change({ ...EMPTY, file, sound: URL.createObjectURL(file) });
  }

  async record() {
    const frames = [];
    this.change({ error: null, level: 0, recorded: 0 });
    try {
      const end = await record((pcm, level) => {
        frames.push(pcm);
        this.change({ level, recorded: frames.length / 25 });
      });
      const finish = () => {
        end();
        this.change({ finish: null });
        this.take(new File([wav(concatPcm(frames))], "recording.wav", { type: "audio/wav" }));
      };
      this.change({ finish });
    } catch (error) {
      this.change({ error });
    }
  }

  async transcribe() {
    const cancel = new AbortController();
    const id = newId();
    const startedAt = performance.now();
    this.change({ ...EMPTY, cancel, id });
    try {
      await this.#send(id, startedAt, cancel.signal);
      this.change({ took: secondsSince(startedAt) });
    } catch (error) {
      if (!isAbort(error)) this.change({ error });
    }
    this.change({ cancel: null });
  }

  async #send(id, startedAt, signal) {
    const form = new FormData();
    for (const [name, value] of formFields(this.model, this.state, this.state.file)) form.append(name, value);
    const options = { form, headers: { "X-Request-Id": id }, signal };
    if (this.state.answer === "times") {
      const { text, segments, duration } = await api.json(PATH, options);
      this.change({ text, segments, length: duration });
      return;
    }
    for await (const event of api.stream(PATH, options)) {
      const { delta, text, usage } = check(event);
      if (delta) this.change({ first: this.state.first ?? secondsSince(startedAt), text: this.state.text + delta });
      else this.change({ text, length: usage.seconds });
    }
  }
}

function Source({ store }) {
  const { file, sound, finish, recorded, level } = store.state;
  const drop = (event) => {
    event.preventDefault();
    store.take(event.dataTransfer.files[0]);
  };
  const start = () => html`<button class="button" type="button" disabled=${!canRecord()} onClick=${() => store.record()}
    >Record</button>`;
  const recording = () => html`<button class="button main" type="button" onClick=${finish}>Stop recording</button>
    <span class="note">${recorded.toFixed(1)} s</span><${Level} label="Microphone" value=${level} />`;
  return html`<div class="stack" onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
    <div class="row">
      <${FilePicker} text="Choose a file" label="Audio file" accept="audio/*" choose=${([one]) => store.take(one)} />
      ${finish ? recording() : start()}
    </div>
    <p class="note">${file
      ? `${file.name}, ${bytes(file.size)}`
      : "WAV, MP3, FLAC or Ogg. You can also drop a file here."}</p>
    ${!canRecord() && html`<p class="note wrap">${SECURE_CONTEXT_HINT}</p>`}
    ${file && html`<audio controls src=${sound} aria-label="Audio"></audio>`}
  </div>`;
}

function Segments({ segments, seek }) {
  const row = ({ id, start, end, text }) => html`<tr key=${id}>
    <td><button class="button quiet" type="button" aria-label=${`Play from ${start.toFixed(2)} s`}
      onClick=${() => seek(start)}>${start.toFixed(2)}</button></td>
    <td>${end.toFixed(2)}</td><td>${text.trim()}</td></tr>`;
  return html`<table class="table"><caption class="sr">Transcript with timestamps</caption>
    <thead><tr><th scope="col">Start (s)</th><th scope="col">End (s)</th><th scope="col">Text</th></tr></thead>
    <tbody>${segments.map(row)}</tbody></table>`;
}

function TranscriptView({ state: { text, segments, cancel, first, took, length, id }, seek }) {
  const note = took ? "No speech detected." : cancel ? "Transcribing …" : "The transcript appears here.";
  return html`<div class="text" aria-live="polite">${text || html`<p class="note">${note}</p>`}</div>
    ${segments.length > 0 && html`<${Segments} segments=${segments} seek=${seek} />`}
    <${Figures} id=${id} items=${[
      ["first text", first && seconds(first)],
      ["duration", took && seconds(took)],
      ["audio length", length && seconds(length)],
      ["real-time factor", took && length && (took / length).toFixed(2)],
    ]} />`;
}

export default function Transcription({ model }) {
  const store = useStore(TranscriptionStore, model);
  const place = useRef();
  const { answer, file, cancel, error, finish } = store.state;
  const seek = (start) => {
    const player = place.current.querySelector("audio");
    player.currentTime = start;
    player.play();
  };
  const form = formFields(model, store.state, { file: file?.name ?? "audio.wav" });
  const reads = answer === "times" ? "json" : "events";
  return html`<div class="play" ref=${place}>
    <div class="stack">
      <div class="panel stack">
        <${Source} store=${store} />
        <div class="row">
          <button class="button main" type="button" disabled=${!file || cancel || finish}
            onClick=${() => store.transcribe()}>Transcribe</button>
          ${cancel && html`<button class="button" type="button" onClick=${() => cancel.abort()}>Stop</button>`}
        </div>
      </div>
      <section class="panel stack" aria-label="Transcript">
        <${ErrorMessage} error=${error} what="Transcription failed" /><${TranscriptView} state=${store.state} seek=${seek} />
      </section>
    </div>
    <aside class="stack">
      <section class="panel stack" aria-label="Parameters">
        <${Choice} label="Output" value=${answer} choose=${(one) => store.change({ answer: one })}
          options=${[["stream", "streamed text"], ["times", "with timestamps"]]} />
        <${ParamField} store=${store} name="language" label="Language" placeholder="auto, or en, de, …" />
      </section>
      <${Code} call=${{ method: "POST", path: PATH, form, reads }} />
    </aside>
  </div>`;
}
