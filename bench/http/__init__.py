"""Benches of the server over HTTP: a real `mstar serve` in its own processes, and clients that cost little."""
