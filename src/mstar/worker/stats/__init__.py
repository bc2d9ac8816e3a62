"""Statistics of a worker: trace spans, op totals, the live view."""
