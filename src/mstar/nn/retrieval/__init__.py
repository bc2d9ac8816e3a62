"""Retrieval: documents as passages, an inverted-file (IVF) index over their vectors, a component that searches it."""
