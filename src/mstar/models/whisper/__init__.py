"""Whisper: writes down what is said, in any of its languages and of any length, or says it in English."""
