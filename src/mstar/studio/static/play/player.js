// Plays a stream of samples as they come. The buffer and the clock are in worklets/player.js;
// here is what a page holds of it. Sound is neither fetched nor decoded here.

let context = null;
const modules = {};

/** Whether the browser lets this page run worklets: only on https and on localhost. */
export const canPlay = () => window.isSecureContext && "AudioWorkletNode" in window;

const port = location.port || 8000;
export const SECURE_CONTEXT_HINT = `The browser gives sound only to pages on https or on localhost. On your own machine run
  ssh -L ${port}:127.0.0.1:${location.port || 80} ${location.hostname}
and open http://localhost:${port}`;

/** The page's one AudioContext with a worklet in it. The first call must come from a click or a key. */
export async function audioContext(worklet) {
  if (!canPlay()) throw new Error(SECURE_CONTEXT_HINT);
  context ??= new AudioContext({ latencyHint: "interactive" });
  if (context.state === "suspended") context.resume(); // not awaited: it may wait for a gesture for ever
  modules[worklet] ??= context.audioWorklet.addModule(new URL(`worklets/${worklet}.js`, import.meta.url));
  await modules[worklet];
  return context;
}

const QUIET = { buffered: 0, played: 0, underruns: 0, level: 0, samples: 0, isOver: true };

export class Player {
  #node = null;
  #opening = null;
  #turn = 0;
  #stopped = null;
  report = QUIET;

  /** `onReport` is called ten times a second with {buffered, played (ms), underruns, level, samples, isOver}. */
  constructor(onReport = () => {}) {
    this.onReport = onReport;
  }

  /** Get ready to play: call it in the click that will lead to sound. */
  open() {
    this.#opening ??= audioContext("player").then((ready) => {
      this.#node = new AudioWorkletNode(ready, "player", { numberOfInputs: 0, outputChannelCount: [1] });
      this.#node.port.onmessage = ({ data }) => this.#heard(data);
      this.#node.connect(ready.destination);
    });
    return this.#opening;
  }

  #heard(report) {
    if (report.turn !== this.#turn) return; // of a stream that was stopped
    this.report = report;
    if (report.isStopped) this.#stopped?.(report.played);
    this.onReport(report);
  }

  #post(act, rest = {}, transfer = []) {
    this.#node?.port.postMessage({ act, ...rest }, transfer);
  }

  /** A new stream; what was left of the one before is dropped. */
  begin(rate) {
    this.#turn += 1;
    this.report = { ...QUIET, isOver: false };
    this.#post("begin", { rate, turn: this.#turn });
  }

  /** More of the stream: a Float32Array, which is given away. */
  push(samples) {
    this.#post("push", { samples }, [samples.buffer]);
  }

  /** No more comes; what is buffered is still played. */
  end() {
    this.#post("end");
  }

  /** Fall silent now. Returns how many milliseconds of the stream were heard. */
  async stop() {
    if (this.report.isOver) return this.report.played;
    const told = new Promise((resolve) => {
      this.#stopped = resolve;
      setTimeout(() => resolve(this.report.played), 250); // a context that does not run does not answer
    });
    this.#post("stop");
    const late = (context?.outputLatency || 0) * 1000; // handed to the device, but not heard yet
    return Math.max(0, Math.floor((await told) - late));
  }

  close() {
    this.#post("close");
    this.#node?.disconnect();
    this.#node = this.#opening = null;
  }
}
