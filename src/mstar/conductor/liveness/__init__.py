"""Failure detection: of workers by their conductor, and of conductors by the launcher."""
