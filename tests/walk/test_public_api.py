"""`import mstar`: the names an author needs, quickly, and without a tensor library."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import mstar


def fresh(code, **environment):
    """What a fresh interpreter prints, and how many milliseconds it computed: others on this machine do not count."""
    env = {**os.environ, **environment}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return run.stdout.strip(), (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def test_all_names_are_there_and_sorted():
    assert len(mstar.__all__) == len(set(mstar.__all__))
    assert all(hasattr(mstar, name) for name in mstar.__all__)
    kinds = [(0 if name.isupper() else 1 if name[0].isupper() else 2, name) for name in mstar.__all__]
    assert kinds == sorted(kinds)


def test_what_is_public_is_in_all():
    submodules = {name.partition(".")[2].partition(".")[0] for name in sys.modules if name.startswith("mstar.")}
    public = {name for name in vars(mstar) if not name.startswith("_")} - (
        submodules - {"walk"}
    )  # the function, not the package
    assert public == set(mstar.__all__)


def test_a_star_import_gives_the_same():
    code = "from mstar import *; print(*sorted(name for name in dir() if not name.startswith('__')))"
    assert fresh(code)[0].split() == sorted(mstar.__all__)


def test_importing_it_loads_no_tensor_library():
    code = "import sys, mstar; print(*({'torch', 'numpy'} & set(sys.modules)))"
    assert fresh(code)[0] == ""


def test_importing_it_takes_less_than_150_ms(tmp_path):
    """Once its bytecode is written, which the first of the five runs does."""
    cache = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    bare = min(fresh("pass", **cache)[1] for _ in range(5))
    assert min(fresh("import mstar", **cache)[1] for _ in range(5)) - bare < 150
