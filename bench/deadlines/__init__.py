"""Streams under load: how scheduling policies affect deadlines."""
