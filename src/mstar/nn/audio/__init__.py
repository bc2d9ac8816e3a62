"""Audio codecs and vocoders: streaming convolutions, lookahead, residual code prediction."""
