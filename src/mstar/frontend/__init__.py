"""The front end's core and its driver: delivers each emission to its client exactly once and in order."""
