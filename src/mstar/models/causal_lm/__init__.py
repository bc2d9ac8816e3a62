"""Any causal language model of transformers, and Llama as GGUF, served from its checkpoint."""
