"""Authoring API of models (components, ops, walks, routes) and the tracer that turns walks into graphs."""
