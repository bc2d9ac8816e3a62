"""Several processes, the ranks, that run one worker: rank 0 schedules, and the others repeat its steps."""
