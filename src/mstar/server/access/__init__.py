"""Who may call: API keys, rate limits, circuit breaker, SLO headers, browser authorization."""
