"""The layout of the repository: no crowded folder, and tests that mirror the packages they test."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "mstar"
MAX_FILES = 22
CROSS_CUTTING = {
    "architectures",  # checkpoints of other libraries, as `mstar serve PATH` loads them
    "bench",  # the benchmarks' own code
    "chaos",  # kills, stalls and disconnects of real processes
    "clients",  # third-party client libraries
    "cluster",  # several hosts
    "deploy",  # deployment files
    "docs",  # pages and what they claim
    "examples",
    "integration",  # several processes of one machine
    "netns",  # network namespaces
    "property",  # random walks
    "tools",  # static checks
}
DATA = {"golden", "mistakes", "typed", "render", "__pycache__"}


def folders(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__")


@pytest.mark.parametrize("folder", folders(SOURCE), ids=str)
def test_no_folder_is_crowded(folder):
    assert len(list((SOURCE / folder).glob("*.py"))) <= MAX_FILES


def test_every_test_folder_mirrors_a_package():
    tests = ROOT / "tests"
    owned = [path for path in folders(tests) if path.parts[0] not in CROSS_CUTTING and not DATA & {*path.parts}]
    assert [str(path) for path in owned if not (SOURCE / path).is_dir()] == []


def test_every_package_has_tests():
    without = {"studio/static"}
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.glob("*/__init__.py")} - {Path()}
    missing = [str(path) for path in packages if not (ROOT / "tests" / path).is_dir()]
    assert sorted(set(missing) - without) == []
