"""The exit of a rank ends rank 0 in the same way."""

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, signal, sys, threading, time
from mstar.worker.ranks.rank_processes import _exit_like
faulthandler.enable()
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=_exit_like, args=(int(sys.argv[1]),)).start()
time.sleep(30)
"""


@pytest.mark.parametrize(
    ("status", "expected"),
    [(-9, -9), (-11, -11), (-15, -15), (3, 3), (0, 70), (-2, 70)],
    ids=["SIGKILL", "SIGSEGV", "SIGTERM", "a status", "success", "a signal that is ignored"],
)
def test_rank_0_ends_as_the_other_rank_did(status, expected):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(status)], capture_output=True, timeout=60, check=False)
    assert done.returncode == expected
