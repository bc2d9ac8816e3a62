"""Request actions with openpi's own client.

Runs in its own venv: act_openpi.py HOST PORT FOLDER. FOLDER/seen.npz is the observation; two chunks of actions go to
FOLDER/actions.npy. Prints the control rate of the robot, and the error for a wrong observation.
"""

import sys
from pathlib import Path

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
policy = WebsocketClientPolicy(host, port)
seen = dict(np.load(folder / "seen.npz"))
answers = [policy.infer({**seen, "prompt": "fold"}) for _ in range(2)]
assert all(answer["server_timing"]["infer_ms"] > 0 for answer in answers)
np.save(folder / "actions.npy", np.stack([answer["actions"] for answer in answers]))
sys.stdout.write(f"{policy.get_server_metadata()['rate']}\n")
try:
    policy.infer({**seen, "pose": seen["pose"][:31]})
except RuntimeError as error:
    sys.stdout.write(f"{error}\n")
