"""Telemetry: Prometheus metrics, OTLP span export, access logs."""
