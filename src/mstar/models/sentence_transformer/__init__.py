"""Text embeddings with encoders of sentence-transformers, such as all-MiniLM-L6-v2."""
