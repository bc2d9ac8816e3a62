"""Diffusion and flow matching heads."""
