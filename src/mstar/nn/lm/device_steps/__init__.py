"""Decode steps on a device: captured as graphs, and launched ahead."""
