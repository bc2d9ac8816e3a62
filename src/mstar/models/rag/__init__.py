"""RAG: answers questions about documents with SmolLM2, and cites them."""
