"""Speech encoders with a CTC head on raw audio: wav2vec 2.0, HuBERT, WavLM and their variants."""
