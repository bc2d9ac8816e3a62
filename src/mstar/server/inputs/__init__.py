"""Media in requests: multipart forms, data URLs, SSRF-safe downloads."""
