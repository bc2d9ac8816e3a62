"""Endpoints for operators: health, model loading, traces, live feed."""
