"""Faces: a generated portrait photograph for each seed, 1024 x 1024 pixels."""
