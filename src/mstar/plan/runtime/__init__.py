"""Execution of a plan for one request: frames, instruction handlers, regions, streams. No IO, no clock."""
