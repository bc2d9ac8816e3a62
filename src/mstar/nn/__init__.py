"""Tensor blocks for models: components that wrap a library's network, and the memory they keep for requests."""
