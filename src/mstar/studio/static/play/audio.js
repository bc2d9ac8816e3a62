// Audio data: 16-bit samples, WAV files, and any file the browser decodes. Plays and records nothing.

export const RATE = 24000; // default sample rate of the server

/** 16-bit samples from bytes at any offset (a typed array needs an aligned one). */
export function toPcm(bytes) {
  return new Int16Array(bytes.slice(0, bytes.length - (bytes.length % 2)).buffer);
}

export function toFloatSamples(pcm) {
  return Float32Array.from(pcm, (one) => one / 32768);
}

export function concatPcm(parts) {
  const whole = new Int16Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** A WAV file of mono 16-bit samples. */
export function wav(pcm, rate = RATE) {
  const head = new DataView(new ArrayBuffer(44));
  const put = (at, text) => [...text].forEach((letter, i) => head.setUint8(at + i, letter.charCodeAt(0)));
  put(0, "RIFF");
  head.setUint32(4, 36 + pcm.byteLength, true);
  put(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, rate, true);
  head.setUint32(28, rate * 2, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  put(36, "data");
  head.setUint32(40, pcm.byteLength, true);
  return new Blob([head, pcm], { type: "audio/wav" });
}

/** Decode a file to mono samples at RATE. The browser resamples. */
export async function decodeAudioFile(file) {
  let audio;
  try {
    audio = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not an audio file. Choose a WAV, MP3, FLAC or Ogg file.`);
  }
  const channels = Array.from({ length: audio.numberOfChannels }, (_, number) => audio.getChannelData(number));
  return Int16Array.from(channels[0], (_, at) => {
    const mean = channels.reduce((sum, one) => sum + one[at], 0) / channels.length;
    return Math.max(-1, Math.min(1, mean)) * 32767;
  });
}

/** Peak of every 20 ms, from 0 to 1, of streamed samples. */
export class Peaks {
  constructor(rate) {
    this.values = [];
    this.each = rate / 50;
    this.count = 0;
  }

  add(pcm) {
    for (const one of pcm) {
      const at = Math.floor(this.count++ / this.each);
      const loud = Math.abs(one) / 32768;
      if (!(this.values[at] >= loud)) this.values[at] = loud;
    }
  }
}
