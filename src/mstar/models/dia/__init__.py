"""Dia: dialogue from a transcript with speaker tags, as nine delayed codebooks of the audio codec DAC."""
