"""Prometheus metrics, OTLP spans, access logs."""
