// Streaming audio player: the page's side of worklets/player.js, which has the buffer and the clock.
// It neither fetches nor decodes audio.

let context = null;
const modules = {};

/** Whether audio worklets are available: only on https and localhost. */
export const canPlay = () => window.isSecureContext && "AudioWorkletNode" in window;

const port = location.port || 8000;
export const SECURE_CONTEXT_HINT = `Browsers allow audio only on https or localhost. On your own machine run
  ssh -L ${port}:127.0.0.1:${location.port || 80} ${location.hostname}
and open http://localhost:${port}`;

/** The page's AudioContext with a worklet loaded. The first call must come from a user gesture. */
export async function audioContext(worklet) {
  if (!canPlay()) throw new Error(SECURE_CONTEXT_HINT);
  context ??= new AudioContext({ latencyHint: "interactive" });
  if (context.state === "suspended") context.resume(); // not awaited: it can wait forever for a gesture
  modules[worklet] ??= context.audioWorklet.addModule(new URL(`worklets/${worklet}.js`, import.meta.url));
  await modules[worklet];
  return context;
}

const SILENT = { buffered: 0, played: 0, underruns: 0, level: 0, samples: 0, isOver: true };

export class Player {
  #node = null;
  #opening = null;
  #turn = 0;
  #stopped = null;
  report = SILENT;

  /** Calls `onReport` ten times per second with {buffered, played (ms), underruns, level, samples, isOver}. */
  constructor(onReport = () => {}) {
    this.onReport = onReport;
  }

  /** Prepare playback. Call it in the handler of the user gesture. */
  open() {
    this.#opening ??= audioContext("player").then((ready) => {
      this.#node = new AudioWorkletNode(ready, "player", { numberOfInputs: 0, outputChannelCount: [1] });
      this.#node.port.onmessage = ({ data }) => this.#onReport(data);
      this.#node.connect(ready.destination);
    });
    return this.#opening;
  }

  #onReport(report) {
    if (report.turn !== this.#turn) return; // of a stopped stream
    this.report = report;
    if (report.isStopped) this.#stopped?.(report.played);
    this.onReport(report);
  }

  #post(act, rest = {}, transfer = []) {
    this.#node?.port.postMessage({ act, ...rest }, transfer);
  }

  /** Start a new stream, and drop the rest of the previous one. */
  begin(rate) {
    this.#turn += 1;
    this.report = { ...SILENT, isOver: false };
    this.#post("begin", { rate, turn: this.#turn });
  }

  /** Append samples to the stream. The Float32Array is transferred. */
  push(samples) {
    this.#post("push", { samples }, [samples.buffer]);
  }

  /** End the stream; buffered audio still plays. */
  end() {
    this.#post("end");
  }

  /** Stop now. Returns the milliseconds of the stream that were audible. */
  async stop() {
    if (this.report.isOver) return this.report.played;
    const played = new Promise((resolve) => {
      this.#stopped = resolve;
      setTimeout(() => resolve(this.report.played), 250); // a suspended context does not report
    });
    this.#post("stop");
    const late = (context?.outputLatency || 0) * 1000; // sent to the device, but not audible yet
    return Math.max(0, Math.floor((await played) - late));
  }

  close() {
    this.#post("close");
    this.#node?.disconnect();
    this.#node = this.#opening = null;
  }
}
