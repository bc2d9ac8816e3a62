"""Qwen3-TTS: text to speech with a talker, a code predictor and a causal codec."""
