"""Model zoo: one folder per model family, served by name (`mstar serve smollm2`). The runtime imports none of them."""
