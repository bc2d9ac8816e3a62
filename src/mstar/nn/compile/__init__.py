"""Graph capture, operator fusion and int8 quantization of networks."""
