"""Endpoints of the OpenAI API."""
