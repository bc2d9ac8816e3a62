"""Hopper: a small published policy of a one-legged robot."""
