"""How many workers run: autoscaler, rolling updates of weights, loading and unloading of models."""
