"""Streams under load: what a rule for the next batch does to those who listen."""
