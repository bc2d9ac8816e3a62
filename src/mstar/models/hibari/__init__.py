"""Hibari: text to speech with ONNX Runtime."""
