"""Endpoints for robots and world models."""
