"""Twin engine: runs ops without weights, in the time that they were measured or set to take."""
