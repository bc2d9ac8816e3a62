"""Language models: decoders, sampling, grammars, M-RoPE, encoder-decoders, tensor parallelism."""
