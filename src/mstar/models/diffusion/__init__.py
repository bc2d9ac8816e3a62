"""Diffusion models for images and videos: Stable Diffusion 3 and Wan, in the folder layout of diffusers."""
