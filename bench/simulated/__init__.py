"""Predicted against real: `mstar profile` and `mstar plan-capacity` compared with deployments on this machine."""
