"""Launcher process for kill tests: starts stub processes, prints their pids, and waits."""

import json
import sys
import time

from tests.launch.launcher_harness import StubLauncher, make_placement

if __name__ == "__main__":
    local = StubLauncher({"m": "none.py"}, make_placement("a", "b"))
    local.start()
    while "standby" not in local.stats()["processes"]:
        time.sleep(0.01)
    sys.stdout.write(json.dumps({"directory": str(local.directory), "pids": local.stats()["processes"]}) + "\n")
    sys.stdout.flush()
    time.sleep(60)
