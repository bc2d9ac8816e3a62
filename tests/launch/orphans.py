"""A launcher to be killed: it starts stand-ins, says where and who they are, and waits."""

import json
import sys
import time

from tests.launch.parts import LocalStandIns, placed

if __name__ == "__main__":
    local = LocalStandIns({"m": "none.py"}, placed("a", "b"))
    local.start()
    while "spare" not in local.stock()["processes"]:
        time.sleep(0.01)
    sys.stdout.write(json.dumps({"directory": str(local.directory), "pids": local.stock()["processes"]}) + "\n")
    sys.stdout.flush()
    time.sleep(60)
