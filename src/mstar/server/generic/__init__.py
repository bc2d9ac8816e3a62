"""POST /v1/generate: any model by its own request type."""
