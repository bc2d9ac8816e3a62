"""Batch scheduling: scheduler, policy, cost model, fair share, load estimate."""
