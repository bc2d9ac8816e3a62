"""Speech families against their reference, each with tiny or small networks of random weights."""
