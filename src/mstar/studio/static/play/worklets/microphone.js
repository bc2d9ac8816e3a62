// The audio thread's side of play/microphone.js: mono, brought to 24 kHz, in frames of 40 ms with their level.

const RATE = 24000;
const FRAME = RATE / 25;

class MicrophoneProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.isClosed = false;
    this.port.onmessage = () => (this.isClosed = true);
    this.step = sampleRate / RATE; // input samples to one of ours
    this.left = this.step; // how much of our next sample is still to come
    this.sum = 0;
    this.frame = new Int16Array(FRAME);
    this.count = 0;
    this.power = 0;
  }

  /** A sample of ours is the mean of the input it covers: that also keeps what is too high for 24 kHz down. */
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
    const kept = Math.max(-1, Math.min(1, value));
    this.frame[this.count++] = kept * 32767;
    this.power += kept * kept;
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
