"""tools/rename.py: symbols follow their type, files follow their imports, prose stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "src/pack/__init__.py": "",
    "src/pack/door.py": (
        'class Door:\n    """A Door opens."""\n\n    def open(self, wish: int = 0) -> int:\n        return wish\n'
    ),
    "src/pack/other.py": "class Window:\n    def open(self) -> int:\n        return 2\n",
    "src/pack/use.py": (
        "from pack.door import Door\nfrom pack.other import Window\n\n\n"
        "def use(door: Door, window: Window) -> str:\n"
        '    return f"{door.open(wish=1)} {window.open()}"  # a Door\n'
    ),
    "tests/test_use.py": "def test(door):\n    assert door.open() == 0\n",
    "docs/page.md": "See `src/pack/door.py` and `pack.door`: a Door.\n",
}
TABLE = (
    "rename\tsrc/pack/door.py\tDoor\tServerState\n"
    "rename\tsrc/pack/door.py\tDoor.open\tstart\n"
    "rename\tsrc/pack/door.py\tDoor.open(wish)\tparams\n"
    "move\tsrc/pack/door.py\tsrc/pack/state.py\n"
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
    assert "def use(door: ServerState, window: Window)" in use
    assert '{door.start(params=1)} {window.open()}"  # a Door' in use
    assert '"""A Door opens."""' in (tmp_path / "src/pack/state.py").read_text()
    assert (tmp_path / "docs/page.md").read_text() == "See `src/pack/state.py` and `pack.state`: a Door.\n"
    assert "left tests/test_use.py:2: open (start)" in done.stdout
