"""Media codecs: sandboxed decoding of client files, encoding of model outputs, and voice activity detection (VAD).

- Decoding (`decoder_pool`, `decoder_process`): images and audio, in resource-limited decoder processes (sandbox).
- Encoding (`audio`, `images`, `mp4`): PCM, WAV, MP3, Opus, AAC, FLAC; PNG, JPEG, WebP; MP4 (H.264).
- VAD (`vad`): energy-based speech detection for realtime sessions.

It knows neither HTTP nor models. Each module imports its own libraries; this package imports none.
"""
