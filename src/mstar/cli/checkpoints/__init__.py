"""Checkpoints by path or Hub id: which installed model serves them (`mstar serve PATH_OR_HUB_ID`)."""
