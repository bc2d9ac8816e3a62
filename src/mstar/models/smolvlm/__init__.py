"""SmolVLM: a small language model that sees pictures."""
