"""VITS: text to speech in one network, as the MMS-TTS checkpoints of many languages."""
