"""`python -m mstar.sim FIRST LAST MINUTES`: one process's share of the scenarios; says what came of them in JSON.

People use `mstar sim run`, which starts these.
"""

import sys

from mstar.sim.runner import run_in_process

first, last, minutes = sys.argv[1:]
sys.stdout.write(run_in_process(range(int(first), int(last)), float(minutes)).to_json())
