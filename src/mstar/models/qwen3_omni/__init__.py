"""Qwen3-Omni: a thinker that reads, hears and sees, and a talker that speaks what it thinks."""
