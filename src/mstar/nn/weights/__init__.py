"""Where weights come from: checkpoints, GGUF files, checksums."""
