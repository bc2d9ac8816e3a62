"""LoRA adapters in the PEFT layout: one per request, mixed in one batch."""
