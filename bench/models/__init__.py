"""Models that the benches of the runtime serve."""
