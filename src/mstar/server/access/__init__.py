"""Access control: API keys, rate limits, circuit breaker, load shedding, SLO headers, browser authentication."""
