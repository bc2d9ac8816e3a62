"""Neural network components: language models with a paged KV cache, encoders, audio codecs, diffusion heads."""
