"""Where walks run: workers for their seats, walks that wait for one, and the states that they use."""
