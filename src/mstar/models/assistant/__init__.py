"""The assistant: VAD, ASR, a language model and TTS in one composite model."""
