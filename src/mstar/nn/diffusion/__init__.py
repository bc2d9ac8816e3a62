"""Flow and diffusion heads."""
