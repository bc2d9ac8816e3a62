"""Which batch runs next: scheduler, policy, cost model, load estimate, fair share."""
