"""The OpenAI Realtime API over WebSockets."""
