"""Speculative decoding: several tokens of a request per forward."""
