// Audio worklet of play/microphone.js: resamples to mono 24 kHz, in 40 ms frames with their level.

const RATE = 24000;
const FRAME = RATE / 25;

class MicrophoneProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.isClosed = false;
    this.port.onmessage = () => (this.isClosed = true);
    this.step = sampleRate / RATE; // input samples per output sample
    this.left = this.step; // remaining input for the next output sample
    this.sum = 0;
    this.frame = new Int16Array(FRAME);
    this.count = 0;
    this.power = 0;
  }

  /** An output sample is the mean of the input it covers, which also acts as a low-pass filter. */
  take(value) {
    let rest = 1;
    while (rest >= this.left) {
      this.put((this.sum + value * this.left) / this.step);
      rest -= this.left;
      this.left = this.step;
      this.sum = 0;
    }
    this.sum += value * rest;
    this.left -= rest;
  }

  put(value) {
    const clipped = Math.max(-1, Math.min(1, value));
    this.frame[this.count++] = clipped * 32767;
    this.power += clipped * clipped;
    if (this.count < FRAME) return;
    const pcm = this.frame;
    this.port.postMessage({ pcm, level: Math.sqrt(this.power / FRAME) }, [pcm.buffer]);
    this.frame = new Int16Array(FRAME);
    this.count = this.power = 0;
  }

  process([channels]) {
    if (channels.length) {
      for (let n = 0; n < channels[0].length; n += 1) {
        let sum = 0;
        for (const channel of channels) sum += channel[n];
        this.take(sum / channels.length);
      }
    }
    return !this.isClosed;
  }
}

registerProcessor("microphone", MicrophoneProcessor);
