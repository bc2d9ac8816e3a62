"""Language models: decoder, sampler, grammar-constrained decoding, M-RoPE, encoder-decoder, tensor parallelism."""
