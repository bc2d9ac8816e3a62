"""Weights: sources (path, Hub, package), safetensors checkpoints, GGUF files, checksums."""
