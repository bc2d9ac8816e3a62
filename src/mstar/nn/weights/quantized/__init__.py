"""Quantized checkpoints (AWQ, GPTQ, FP8, compressed-tensors), whose weights are dequantized while they are read."""
