// Microphone input in 40 ms frames of 16-bit samples at 24 kHz, or an audio file in its place.

import { SECURE_CONTEXT_HINT, audioContext } from "./player.js";
import { RATE, decodeAudioFile } from "./audio.js";

const FRAME = RATE / 25;

export const canRecord = () => Boolean(navigator.mediaDevices?.getUserMedia);

const ERRORS = {
  NotAllowedError: "Microphone access denied. Allow it for this page in the address bar.",
  NotFoundError: "No microphone is connected. Connect one, or send a file instead.",
  NotReadableError: "Another program uses the microphone. Close it, then try again.",
};

/** Open the microphone. Calls `onFrame(pcm, level)` 25 times per second. Returns a function that closes it. */
export async function record(onFrame) {
  if (!canRecord()) throw new Error(SECURE_CONTEXT_HINT);
  const context = await audioContext("microphone");
  let stream;
  try {
    const audio = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    stream = await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Error(ERRORS[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
  const source = context.createMediaStreamSource(stream);
  const node = new AudioWorkletNode(context, "microphone", { outputChannelCount: [1] });
  node.port.onmessage = ({ data }) => onFrame(data.pcm, data.level);
  source.connect(node);
  node.connect(context.destination); // outputs silence; an unconnected node does not run
  return () => {
    node.port.onmessage = null;
    node.port.postMessage("close");
    source.disconnect();
    node.disconnect();
    for (const track of stream.getTracks()) track.stop();
  };
}

/** Play a file in real time as microphone input, then `silence_ms` of silence. Returns a function that stops it. */
export async function replay(file, onFrame, onEnd, silence_ms) {
  const pcm = await decodeAudioFile(file);
  const count = Math.ceil((pcm.length + (silence_ms * RATE) / 1000) / FRAME);
  const startedAt = performance.now();
  let sent = 0;
  const timer = setInterval(() => {
    const due = Math.min(count, Math.floor((performance.now() - startedAt) / 40)); // timers of a background page are throttled
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
