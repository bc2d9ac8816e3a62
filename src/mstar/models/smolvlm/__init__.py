"""SmolVLM: a small vision-language model."""
