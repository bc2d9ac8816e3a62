"""The exit of a child process ends its worker in the same way."""

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, signal, sys, threading, time
from mstar.worker.child_process import exit_like
faulthandler.enable()
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=exit_like, args=(int(sys.argv[1]),)).start()
time.sleep(30)
"""


@pytest.mark.parametrize(
    ("status", "expected"),
    [(-9, -9), (-11, -11), (-15, -15), (3, 3), (0, 70), (-2, 70)],
    ids=["SIGKILL", "SIGSEGV", "SIGTERM", "a status", "success", "a signal that is ignored"],
)
def test_a_worker_ends_as_its_child_did(status, expected):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(status)], capture_output=True, timeout=60, check=False)
    assert done.returncode == expected
