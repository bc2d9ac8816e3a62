"""A control loop that requests actions of pi0.5 at a fixed rate, with openpi's own client.

Runs in its own venv: loop_openpi.py HOST PORT RATE COUNT. Two cameras see noise. Prints the duration of each reply in
seconds as JSON; after a late reply, the next request follows at once.
"""

import json
import sys
import time

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

host, port, rate, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
policy, rng, reply_s = WebsocketClientPolicy(host, port), np.random.default_rng(0), []
for tick in range(-1, count):  # the first is a warm-up
    names = policy.get_server_metadata()["cameras"][:2]
    seen = {name: rng.integers(0, 255, (64, 64, 3), np.uint8) for name in names}
    if tick <= 0:
        start = time.perf_counter()
    time.sleep(max(0.0, start + tick / rate - time.perf_counter()))
    sent_at = time.perf_counter()
    policy.infer({**seen, "state": rng.uniform(-1, 1, 8).astype(np.float32), "prompt": "fold the shirt"})
    reply_s.append(time.perf_counter() - sent_at)
sys.stdout.write(json.dumps(reply_s[1:]))
