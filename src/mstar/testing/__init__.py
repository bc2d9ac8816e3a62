"""The public testing kit: what a model author needs to try a walk without weights, devices or a server.

`toys`, `toy_speech` and `toy_worlds` hold components that compute little but forget nothing. They need numpy.
"""
