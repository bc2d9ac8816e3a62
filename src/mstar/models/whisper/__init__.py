"""Whisper: automatic speech recognition (ASR)."""
