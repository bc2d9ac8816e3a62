"""Kokoro: eighty-two million parameters that say a text in one of fifty-four voices, sentence by sentence."""
