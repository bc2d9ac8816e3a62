"""Low-rank compression of networks: calibrated on activations, loaded from `low_rank` in config.json."""
