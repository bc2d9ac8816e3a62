"""Pictures and films by diffusion: Stable Diffusion 3 and Wan, in the folder layout of diffusers."""
