"""The model of the race behind general model servers, one small file each, as their own documentation would have it.

Each runs as `python -m bench.peers.servers.NAME PORT`, or by its library's own command, in a venv of its own. A request
is {"frames": base64 of float32, "tokens": number}, an answer {"sound": base64 of float32}. Batches are of eight at most
and wait 10 ms to fill, where a server has these settings.
"""

MAX_BATCH_SIZE, BATCH_WAIT_S = 8, 0.01
"""How many requests share a batch, and how long one waits for others."""
