// The microphone as frames of 40 ms of 16-bit samples at 24 kHz, and a file of sound that stands in for it.
// What becomes of the frames is not decided here.

import { SECURE_CONTEXT_HINT, audioContext } from "./player.js";
import { RATE, decodeAudioFile } from "./audio.js";

const FRAME = RATE / 25;

export const canRecord = () => Boolean(navigator.mediaDevices?.getUserMedia);

const REFUSALS = {
  NotAllowedError: "The browser was not allowed to use the microphone. Allow it for this page, next to the address.",
  NotFoundError: "There is no microphone. Connect one, or send a file instead.",
  NotReadableError: "The microphone is used by another program. Close that, and try again.",
};

/** Opens the microphone. `onFrame(pcm, level)` is called 25 times a second. Returns what ends it. */
export async function record(onFrame) {
  if (!canRecord()) throw new Error(SECURE_CONTEXT_HINT);
  const context = await audioContext("microphone");
  let stream;
  try {
    const audio = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    stream = await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Error(REFUSALS[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
  const source = context.createMediaStreamSource(stream);
  const node = new AudioWorkletNode(context, "microphone", { outputChannelCount: [1] });
  node.port.onmessage = ({ data }) => onFrame(data.pcm, data.level);
  source.connect(node);
  node.connect(context.destination); // it gives silence; a node that leads nowhere is not run
  return () => {
    node.port.onmessage = null;
    node.port.postMessage("close");
    source.disconnect();
    node.disconnect();
    for (const track of stream.getTracks()) track.stop();
  };
}

/** Gives a file as a microphone would: at its own pace, then `silence_ms` of silence. Returns what ends it. */
export async function replay(file, onFrame, onEnd, silence_ms) {
  const pcm = await decodeAudioFile(file);
  const count = Math.ceil((pcm.length + (silence_ms * RATE) / 1000) / FRAME);
  const begun = performance.now();
  let sent = 0;
  const timer = setInterval(() => {
    const due = Math.min(count, Math.floor((performance.now() - begun) / 40)); // a page in the background ticks rarely
    for (; sent < due; sent += 1) {
      const frame = new Int16Array(FRAME);
      frame.set(pcm.subarray(sent * FRAME, (sent + 1) * FRAME));
      onFrame(frame, Math.hypot(...frame) / Math.sqrt(FRAME) / 32768);
    }
    if (sent === count) {
      clearInterval(timer);
      onEnd();
    }
  }, 40);
  return () => clearInterval(timer);
}
