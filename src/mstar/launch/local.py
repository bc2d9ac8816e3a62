"""The launcher of one machine: plain processes under one parent, which watches them and starts them again.

    with Local({"tiny": "tiny.py"}) as local:
        local.add(front_end)

Other machines are not its business.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mstar.config import Options
from mstar.launch.launcher import Launcher
from mstar.launch.life import Here, Life
from mstar.launch.running import Running


class Local(Launcher):
    """A deployment on this machine. A *spare* is a process without a name that can take the place of a dead one."""

    command: tuple[str, ...] = (sys.executable, "-P", "-m", "mstar.launch.child")
    """What starts a child, before its arguments."""

    def __init__(
        self,
        models: Mapping[str, str],
        placements: Mapping[str, Path | str | None] | None = None,
        *,
        options: Options | None = None,
        spare: bool = True,
        is_plain: bool = False,
    ) -> None:
        super().__init__(models, placements, options=options, is_plain=is_plain)
        self._has_spare = spare

    def _starter(self, died: Callable[[Running], None]) -> Here[Life]:
        return Here(Life, (*self.command, str(os.getpid()), *self._models.values()), died)
