"""Image, robot and world families: against their reference, or as real things that run."""
