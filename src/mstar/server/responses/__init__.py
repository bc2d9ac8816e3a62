"""Responses API of OpenAI (`/v1/responses`), on top of the chat path."""
