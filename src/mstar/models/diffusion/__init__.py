"""Diffusion models in the folder layout of diffusers: Stable Diffusion 3, FLUX, Wan and LTX-Video."""
