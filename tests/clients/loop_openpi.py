"""A robot that asks a pi0.5 for actions at a steady rate, with openpi's own client.

It runs in a venv of its own: loop_openpi.py HOST PORT RATE COUNT. Two cameras see noise. How many seconds each reply
took is written as JSON; a robot whose reply is late asks again when it has it.
"""

import json
import sys
import time

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

host, port, rate, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
policy, drawn, took = WebsocketClientPolicy(host, port), np.random.default_rng(0), []
for tick in range(-1, count):  # the first is to wake it up
    names = policy.get_server_metadata()["cameras"][:2]
    seen = {name: drawn.integers(0, 255, (64, 64, 3), np.uint8) for name in names}
    if tick <= 0:
        start = time.perf_counter()
    time.sleep(max(0.0, start + tick / rate - time.perf_counter()))
    begun = time.perf_counter()
    policy.infer({**seen, "state": drawn.uniform(-1, 1, 8).astype(np.float32), "prompt": "fold the shirt"})
    took.append(time.perf_counter() - begun)
sys.stdout.write(json.dumps(took[1:]))
