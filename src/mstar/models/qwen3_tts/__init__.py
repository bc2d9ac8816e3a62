"""Qwen3-TTS: a talker that writes the first code of each frame of speech, a predictor of the others, and a codec."""
