"""A language model without weights, for `mstar twin`."""
