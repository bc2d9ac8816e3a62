// Audio worklet of play/player.js: a ring buffer of samples, played at the device's rate with linear resampling.
// It prebuffers before it starts and after each underrun.

const PREBUFFER_S = 0.15;
const REPORT_S = 0.1;

class PlaybackProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.isClosed = false;
    this.ring = new Float32Array(1 << 19); // 22 s at 24 kHz; it doubles when more waits
    this.begin({ rate: 24000, turn: 0 });
    this.isOver = true;
    this.port.onmessage = ({ data }) => this[data.act](data);
  }

  begin({ rate, turn }) {
    this.rate = rate;
    this.turn = turn;
    this.count = 0; // samples received
    this.at = 0; // fractional position of the next sample to play
    this.underruns = 0;
    this.level = 0;
    this.isPlaying = this.isStarved = this.isEnded = this.isOver = this.isStopped = false;
    this.reported = currentTime;
  }

  push({ samples }) {
    if (this.isOver) return;
    if (this.isStarved) this.underruns += 1; // it ran empty before the end: an underrun
    this.isStarved = false;
    const start = Math.floor(this.at);
    while (this.count - start + samples.length > this.ring.length) this.grow(start);
    const mask = this.ring.length - 1;
    for (let n = 0; n < samples.length; n += 1) this.ring[(this.count + n) & mask] = samples[n];
    this.count += samples.length;
  }

  grow(start) {
    const old = this.ring;
    this.ring = new Float32Array(old.length * 2);
    for (let n = start; n < this.count; n += 1) {
      this.ring[n & (this.ring.length - 1)] = old[n & (old.length - 1)];
    }
  }

  end() {
    this.isEnded = true;
  }

  stop() {
    this.isPlaying = false;
    this.isOver = this.isStopped = true;
    this.report();
  }

  close() {
    this.isClosed = true;
  }

  report() {
    const played = Math.min(this.at, this.count);
    this.port.postMessage({
      turn: this.turn,
      played: (played / this.rate) * 1000,
      buffered: ((this.count - played) / this.rate) * 1000,
      samples: Math.floor(played),
      underruns: this.underruns,
      level: this.level,
      isOver: this.isOver,
      isStopped: this.isStopped,
    });
    this.level = 0;
    this.reported = currentTime;
  }

  fill(out) {
    const step = this.rate / sampleRate;
    const mask = this.ring.length - 1;
    for (let n = 0; n < out.length; n += 1) {
      const from = Math.floor(this.at);
      if (from + 1 >= this.count && !this.isEnded) {
        this.isPlaying = false;
        this.isStarved = true;
        return;
      }
      if (from >= this.count) {
        this.isPlaying = false;
        this.isOver = true;
        this.report();
        return;
      }
      const current = this.ring[from & mask];
      const next = from + 1 < this.count ? this.ring[(from + 1) & mask] : 0;
      out[n] = current + (next - current) * (this.at - from);
      this.level = Math.max(this.level, Math.abs(out[n]));
      this.at += step;
    }
  }

  process(_, [[out]]) {
    if (this.isOver) return !this.isClosed;
    const isEnough = this.count - this.at >= this.rate * PREBUFFER_S;
    if (!this.isPlaying && (isEnough || this.isEnded)) this.isPlaying = true;
    if (this.isPlaying) this.fill(out);
    if (!this.isOver && currentTime - this.reported >= REPORT_S) this.report();
    return !this.isClosed;
  }
}

registerProcessor("player", PlaybackProcessor);
