"""Endpoints for operators: health, metrics, model loading, traces, live feed."""
