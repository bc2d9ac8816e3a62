"""Terrain: a relief of land that does not exist, out of noise, for each seed."""
