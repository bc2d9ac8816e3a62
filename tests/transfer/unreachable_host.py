"""Run in a network namespace: reads from a host that is disconnected and then reconnected.

Prints one JSON object: result and duration in seconds of each read.
"""

import json
import subprocess
import sys
import threading
import time

import torch

from mstar.errors import ReadFailed
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint

KEY = bytes(range(32))
LOCAL_IP, REMOTE_IP = "10.91.0.1", "10.91.0.2"
SENDER_SCRIPT = """
import sys, torch
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.transfer.codec import ArenaCodec
codec = ArenaCodec(endpoint=HostEndpoint("10.91.0.2", bytes(range(32)), lambda _: False, sys.argv[1]))
for line in sys.stdin:
    print(codec.stats()["slots"] if line == "stats\\n" else codec.pack(torch.ones(1 << 21), "tests").hex(), flush=True)
"""


def send_command(sender_process, line="give"):
    sender_process.stdin.write(line + "\n")
    return sender_process.stdout.readline().strip()


def route(verb):
    command = ["ip", "netns", "exec", sys.argv[2], "ip", "route", verb, "blackhole", LOCAL_IP]
    subprocess.run(command, check=True)


def main():
    kind, other = sys.argv[1:]
    command = ["ip", "netns", "exec", other, sys.executable, "-c", SENDER_SCRIPT, kind]
    senders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(2)
    ]
    codec = ArenaCodec(endpoint=HostEndpoint(LOCAL_IP, KEY, lambda _: False, kind))
    results = {}

    def read(name, data, sender="known"):
        start = time.monotonic()
        try:
            is_right = bool((codec.unpack(bytes.fromhex(data), sender, may_wait=True) == 1).all())
        except ReadFailed:
            is_right = None
        results[name] = is_right, round(time.monotonic() - start, 2)

    known, unknown = senders
    read("before", send_command(known))
    lost, again, from_unknown = send_command(known), send_command(known), send_command(unknown)
    route("add")
    threads = [
        threading.Thread(target=read, args=("known, disconnected", lost)),
        threading.Thread(target=read, args=("unknown, disconnected", from_unknown, "unknown")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    route("del")
    deadline = time.monotonic() + 10
    while True:
        read("healed", again)
        if results["healed"][0] or time.monotonic() > deadline:
            break
        again = send_command(known)
    results["slots"] = int(send_command(known, "stats"))
    codec.close()
    for sender_process in senders:
        sender_process.kill()
        sender_process.communicate()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
