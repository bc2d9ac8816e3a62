"""V-JEPA 2: video embeddings and masked prediction. V-JEPA 2-AC: action-conditioned world model and planning."""
