"""Kokoro: text to speech with 82 million parameters and 54 voices."""
