"""tools/rename.py: symbols follow their type, files follow their imports, prose stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "src/pack/__init__.py": "",
    "src/pack/cache.py": (
        'class Cache:\n    """A Cache opens."""\n\n    def open(self, size: int = 0) -> int:\n        return size\n'
    ),
    "src/pack/other.py": "class Window:\n    def open(self) -> int:\n        return 2\n",
    "src/pack/use.py": (
        "from pack.cache import Cache\nfrom pack.other import Window\n\n\n"
        "def use(cache: Cache, window: Window) -> str:\n"
        '    return f"{cache.open(size=1)} {window.open()}"  # a Cache\n'
    ),
    "tests/test_use.py": "def test(cache):\n    assert cache.open() == 0\n",
    "docs/page.md": "See `src/pack/cache.py` and `pack.cache`: a Cache.\n",
}
TABLE = (
    "rename\tsrc/pack/cache.py\tCache\tServerState\n"
    "rename\tsrc/pack/cache.py\tCache.open\tstart\n"
    "rename\tsrc/pack/cache.py\tCache.open(size)\tparams\n"
    "move\tsrc/pack/cache.py\tsrc/pack/state.py\n"
)


@pytest.mark.nightly
def test_a_table_is_applied(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "table.tsv").write_text(TABLE)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "tools.rename", "table.tsv"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    use = (tmp_path / "src/pack/use.py").read_text()
    assert "from pack.state import ServerState" in use
    assert "def use(cache: ServerState, window: Window)" in use
    assert '{cache.start(params=1)} {window.open()}"  # a Cache' in use
    assert '"""A Cache opens."""' in (tmp_path / "src/pack/state.py").read_text()
    assert (tmp_path / "docs/page.md").read_text() == "See `src/pack/state.py` and `pack.state`: a Cache.\n"
    assert "left tests/test_use.py:2: open (start)" in done.stdout
