"""`mstar serve`: settings, manifest, API keys and start-up progress."""
