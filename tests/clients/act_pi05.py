"""Request actions of pi0.5 with openpi's own client.

Runs in its own venv: act_pi05.py HOST PORT FOLDER. Each FOLDER/seen_N.npz is an observation; its actions go to
FOLDER/actions_N.npy. Prints the robot metadata of the server, and its error for an observation with an unknown camera.
"""

import json
import sys
from pathlib import Path

import numpy as np
from openpi_client import image_tools
from openpi_client.websocket_client_policy import WebsocketClientPolicy

host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
policy = WebsocketClientPolicy(host, port)
for file in sorted(folder.glob("seen_*.npz")):
    seen = dict(np.load(file))
    small = {name: image_tools.resize_with_pad(one, 32, 32) if one.ndim == 3 else one for name, one in seen.items()}
    answer = policy.infer({**small, "prompt": "pick up the cup"})
    assert answer["server_timing"]["infer_ms"] > 0
    np.save(folder / file.name.replace("seen", "actions").replace("npz", "npy"), answer["actions"])
sys.stdout.write(f"{json.dumps(policy.get_server_metadata())}\n")
try:
    policy.infer({"unknown_camera": seen["base_0_rgb"], "state": seen["state"], "prompt": "fold"})
except RuntimeError as error:
    sys.stdout.write(f"{error}\n")
