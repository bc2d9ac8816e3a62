"""Silero: voice activity detection (VAD)."""
