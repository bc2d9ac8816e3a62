"""`python -m mstar.sim FIRST LAST MINUTES`: runs a range of seeds in this process and prints a summary as JSON.

`mstar sim run` starts one of these per core.
"""

import sys

from mstar.sim.runner import run_in_process

first, last, minutes = sys.argv[1:]
sys.stdout.write(run_in_process(range(int(first), int(last)), float(minutes)).to_json())
