"""SmolLM2: a small chat language model."""
