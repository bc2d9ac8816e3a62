"""The git repository that a benchmark measures: its commit, and whether the tree equals that commit."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = (
    "bench/results",
    "docs/performance.md",
    "docs/pictures/performance",
    "docs/mutation-testing.md",
    "docs/game-day.md",
    "docs/pictures/game-day.svg",
    "README.md",
)
"""Files that a run writes itself. They are no source of a figure, and do not make the tree dirty."""
SOURCES = ("src", "bench", "tests", "tools", "examples")
"""Folders in which an untracked file can change a figure."""


class Repository:
    """A checkout at `root`, which may also be no repository at all."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._contains = functools.cache(self._is_ancestor)

    def commit(self) -> str:
        """Full hash of the checked-out commit, or "unknown"."""
        return self._git("rev-parse", "--verify", "HEAD").stdout.strip() or "unknown"

    def is_clean(self) -> bool:
        """Whether every tracked file equals the commit, and no source is untracked. Generated files do not count."""
        excluded = [f":(exclude){path}" for path in GENERATED]
        changed = self._git("status", "--porcelain", "--untracked-files=no", "--", ".", *excluded)
        untracked = self._git("ls-files", "--others", "--exclude-standard", "--", *SOURCES, *excluded)
        return changed.returncode == 0 and not changed.stdout and not untracked.stdout

    def contains(self, commit: str) -> bool:
        """Whether the checked-out commit descends from this one: a commit of another branch or clone is not in it."""
        return self._contains(commit)

    def has_history(self) -> bool:
        """Whether all commits can be found here: a shallow clone or an archive does not have them."""
        return self._git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"

    def _is_ancestor(self, commit: str) -> bool:
        return self._git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0

    def _git(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", *words]
        try:
            return subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=False)
        except OSError as error:  # git is not installed
            return subprocess.CompletedProcess(command, 127, "", str(error))
