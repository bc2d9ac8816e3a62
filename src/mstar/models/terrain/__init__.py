"""Terrain: a generated height map with shaded relief for each seed."""
