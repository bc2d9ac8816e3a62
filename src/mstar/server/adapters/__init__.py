"""LoRA adapters of a server: which there are, and the endpoints that load and unload them."""
