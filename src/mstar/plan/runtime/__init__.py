"""Executes a plan for one request: frames, instruction handlers, streams. No IO, no clock."""
