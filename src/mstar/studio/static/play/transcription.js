// Transcription: what is said in a file, or into the microphone, as text while it is heard or with its times.

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
const NOTHING = { text: "", segments: [], id: null, error: null, first: null, took: null, length: null };

/** The fields of the form. Words as they come, or times at the end: a stream has no times. */
export function formFields(model, { language, answer }, file) {
  const how = answer === "times"
    ? [["response_format", "verbose_json"], ["timestamp_granularities[]", "segment"]]
    : [["stream", "true"]];
  return [["model", model], ...(language.trim() ? [["language", language.trim()]] : []), ...how, ["file", file]];
}

class TranscriptionStore extends Store {
  constructor(model) {
    super(model, { ...NOTHING, language: "", answer: "stream" });
  }

  take(file) {
    if (!file) return;
    if (this.state.sound) URL.revokeObjectURL(this.state.sound);
    this.change({ ...NOTHING, file, sound: URL.createObjectURL(file) });
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
    const begun = performance.now();
    this.change({ ...NOTHING, cancel, id });
    try {
      await this.#ask(id, begun, cancel.signal);
      this.change({ took: secondsSince(begun) });
    } catch (error) {
      if (!isAbort(error)) this.change({ error });
    }
    this.change({ cancel: null });
  }

  async #ask(id, begun, signal) {
    const form = new FormData();
    for (const [name, value] of formFields(this.model, this.state, this.state.file)) form.append(name, value);
    const options = { form, headers: { "X-Request-Id": id }, signal };
    if (this.state.answer === "times") {
      const { text, segments, duration } = await api.json(PATH, options);
      this.change({ text, segments, length: duration });
      return;
    }
    for await (const told of api.stream(PATH, options)) {
      const { delta, text, usage } = check(told);
      if (delta) this.change({ first: this.state.first ?? secondsSince(begun), text: this.state.text + delta });
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
      : "WAV, MP3, FLAC or Ogg; it can also be dropped here."}</p>
    ${!canRecord() && html`<p class="note wrap">${SECURE_CONTEXT_HINT}</p>`}
    ${file && html`<audio controls src=${sound} aria-label="The sound"></audio>`}
  </div>`;
}

function Segments({ segments, seek }) {
  const row = ({ id, start, end, text }) => html`<tr key=${id}>
    <td><button class="button quiet" type="button" aria-label=${`Play from ${start.toFixed(2)} s`}
      onClick=${() => seek(start)}>${start.toFixed(2)}</button></td>
    <td>${end.toFixed(2)}</td><td>${text.trim()}</td></tr>`;
  return html`<table class="table"><caption class="sr">What was said, and when</caption>
    <thead><tr><th scope="col">from (s)</th><th scope="col">to (s)</th><th scope="col">text</th></tr></thead>
    <tbody>${segments.map(row)}</tbody></table>`;
}

function TranscriptView({ state: { text, segments, cancel, first, took, length, id }, seek }) {
  const note = took ? "Nothing is said in it." : cancel ? "Listening …" : "The text appears here.";
  return html`<div class="text" aria-live="polite">${text || html`<p class="note">${note}</p>`}</div>
    ${segments.length > 0 && html`<${Segments} segments=${segments} seek=${seek} />`}
    <${Figures} id=${id} items=${[
      ["first words", first && seconds(first)],
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
  const form = formFields(model, store.state, { file: file?.name ?? "sound.wav" });
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
        <${ErrorMessage} error=${error} what="Nothing was written down" /><${TranscriptView} state=${store.state} seek=${seek} />
      </section>
    </div>
    <aside class="stack">
      <section class="panel stack" aria-label="Parameters">
        <${Choice} label="Output" value=${answer} choose=${(one) => store.change({ answer: one })}
          options=${[["stream", "streamed text"], ["times", "with timestamps"]]} />
        <${ParamField} store=${store} name="language" label="Language" placeholder="found by the model, or en, de, …" />
      </section>
      <${Code} call=${{ method: "POST", path: PATH, form, reads }} />
    </aside>
  </div>`;
}
