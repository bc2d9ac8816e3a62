"""Number of workers: autoscaler, rolling updates of weights, loading and unloading of models."""
