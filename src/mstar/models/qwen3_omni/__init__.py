"""Qwen3-Omni: chat with text, audio, images and video, answered in text and speech."""
