"""Models with real weights, each served by its name: `mstar serve smollm2`. The runtime knows none of them."""
