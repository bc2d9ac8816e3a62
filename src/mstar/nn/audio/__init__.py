"""Audio: streaming codecs and vocoders, lookahead, RVQ code prediction, resampling."""
