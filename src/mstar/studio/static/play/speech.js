// Speech panel: text-to-speech, played while it streams, with replay and WAV download.

import { api, ApiError } from "../api.js";
import { ErrorMessage, seconds, secondsSince } from "../components.js";
import { html } from "../vendor/preact.js";
import { Store, Voice, ParamField, isAbort, newId, numbers, useStore } from "./store.js";
import { Code } from "./code.js";
import { Figures, Wave } from "./meter.js";
import { SECURE_CONTEXT_HINT, Player, canPlay } from "./player.js";
import { Peaks, RATE, concatPcm, toPcm, toFloatSamples, wav } from "./audio.js";

const PATH = "/v1/audio/speech";
const TEXT = "Good morning. This audio is streamed: you hear the first words before the last ones are generated.";

export const requestBody = (model, { text, voice, speed, seed }) => ({
  model,
  input: text,
  ...(voice && { voice }),
  response_format: "pcm",
  ...numbers({ speed: speed === "1" ? "" : speed, seed }),
});

/** Chunks of whole samples, regardless of network boundaries. */
async function* wholeSamples(body) {
  const reader = body.getReader();
  let odd = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const bytes = odd.length ? new Uint8Array([...odd, ...value]) : value;
      odd = bytes.slice(bytes.length - (bytes.length % 2));
      yield toPcm(bytes);
    }
  } catch (error) {
    throw isAbort(error) ? error : new ApiError("the audio was truncated", { status: 500 });
  }
}

class SpeechStore extends Store {
  constructor(model) {
    super(model, { text: TEXT, voice: "", speed: "1", seed: "", peaks: [] });
    this.player = new Player(({ played, underruns, samples }) =>
      this.change({ played: played / 1000, underruns, samples }),
    );
  }

  async speak() {
    const cancel = new AbortController();
    const id = newId();
    if (this.state.file) URL.revokeObjectURL(this.state.file);
    this.change({ cancel, id, error: null, file: null, peaks: [], played: 0, underruns: 0, first: null });
    try {
      if (canPlay()) await this.player.open();
      await this.#follow(id, cancel.signal);
    } catch (error) {
      if (!isAbort(error)) this.change({ error });
    }
    this.player.end();
    this.change({ cancel: null });
  }

  async #follow(id, signal) {
    const startedAt = performance.now();
    const headers = { "X-Request-Id": id };
    const response = await api.raw(PATH, { body: requestBody(this.model, this.state), headers, signal });
    const rate = Number(response.headers.get("X-Sample-Rate")) || RATE;
    const peaks = new Peaks(rate);
    const parts = [];
    this.player.begin(rate);
    try {
      for await (const pcm of wholeSamples(response.body)) {
        parts.push(pcm);
        peaks.add(pcm);
        this.player.push(toFloatSamples(pcm));
        const made = secondsSince(startedAt);
        this.change({ peaks: peaks.values, length: peaks.count / rate, made, first: this.state.first ?? made });
      }
    } finally {
      if (parts.length) this.change({ file: URL.createObjectURL(wav(concatPcm(parts), rate)) });
    }
  }

  stop() {
    this.state.cancel?.abort();
    this.player.stop();
  }
}

function Sound({ state: { peaks, played, first, made, length, underruns, file, id, samples } }) {
  if (!peaks.length) return html`<p class="note">The waveform appears here.</p>`;
  return html`<${Wave} peaks=${peaks} played=${played} />
    <${Figures} id=${id} items=${[
      ["first audio", seconds(first), "from the request to the first samples"],
      ["generated in", seconds(made)],
      ["duration", seconds(length)],
      ["real-time factor", (made / length).toFixed(2), "generation time divided by audio duration"],
      ["played", canPlay() ? seconds(played) : null],
      ["underruns", canPlay() ? underruns : null, "playback gaps: audio arrived too late"],
    ]} />
    <div class="row" data-samples=${samples}>
      ${file && html`<audio controls src=${file} aria-label="Speech audio"></audio>
        <a class="button" href=${file} download="speech.wav">Download WAV</a>`}
    </div>`;
}

export default function Speech({ model, entry }) {
  const store = useStore(SpeechStore, model);
  const { text, speed, cancel, error } = store.state;
  const submit = (event) => {
    event.preventDefault();
    store.speak();
  };
  return html`<div class="play">
    <div class="stack">
      <form class="panel stack" onSubmit=${submit}>
        <${ParamField} store=${store} name="text" label="Text" tag="textarea" rows="5" maxlength="4096" />
        <div class="row">
          <button class="button main" disabled=${cancel || !text.trim()}>Speak</button>
          <button class="button" type="button" onClick=${() => store.stop()}>Stop</button>
          <span class="note" role="status">${cancel && "Speaking …"}</span>
        </div>
        ${!canPlay() && html`<p class="note wrap">${SECURE_CONTEXT_HINT}. Otherwise audio plays when the response is complete.</p>`}
      </form>
      <section class="panel stack" aria-label="Audio">
        <${ErrorMessage} error=${error} what="Speech failed" /><${Sound} state=${store.state} />
      </section>
    </div>
    <aside class="stack">
      <section class="panel stack" aria-label="Parameters">
        <${Voice} store=${store} entry=${entry} />
        <div class="params">
          <${ParamField} store=${store} name="speed" label=${`Speed: ${speed}`} type="range" min="0.5" max="2" step="0.05" />
          <${ParamField} store=${store} name="seed" label="Seed" type="number" placeholder="any" />
        </div>
      </section>
      <${Code} call=${{ method: "POST", path: PATH, body: requestBody(model, store.state), reads: "sound" }} />
    </aside>
  </div>`;
}
