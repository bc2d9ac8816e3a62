"""SmolLM2: a small language model for chat."""
