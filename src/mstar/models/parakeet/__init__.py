"""Parakeet CTC: automatic speech recognition (ASR)."""
