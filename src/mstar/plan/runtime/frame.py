"""One body being run for one request at one seat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mstar.plan.runtime.messages import IterationPath
from mstar.plan.tables import BodyTable, Call, Instruction

if TYPE_CHECKING:
    from mstar.plan.runtime.run import PartitionRun

OnBodyEnd = Callable[["PartitionRun", "Frame"], bool]
"""Goes on where a body has ended. Whether the same frame is to run it again at once."""


class Frame:
    """One body being run: its slots, and how many things each of its instructions still waits for."""

    __slots__ = (
        "index",
        "instruction",
        "limit",
        "on_end",
        "parent",
        "pending",
        "region",
        "remaining",
        "run",
        "slots",
        "table",
        "unfinished",
    )

    def __init__(
        self,
        run: PartitionRun,
        table: BodyTable,
        parent: Frame | None,
        instruction: Instruction | None,
        on_end: OnBodyEnd,
    ) -> None:
        self.run = run
        self.on_end = on_end
        """What to do when the body has run to its end."""
        self.table = table
        self.parent = parent
        self.instruction = instruction
        self.region: Any = instruction.detail if instruction is not None else None
        self.slots: list[Any] = [None] * table.slots
        self.pending: list[int] = []
        self.remaining = 0
        self.index = 0
        self.limit = 0
        self.unfinished: dict[int, int] | None = None
        """How many bodies of each `each` in this frame have not ended."""

    def path(self) -> IterationPath:
        """Which iteration of which region this is, from the outermost in."""
        frame = self
        found: list[int] = []
        while frame.parent is not None:
            found.append(frame.index)
            frame = frame.parent
        return tuple(reversed(found))

    def arguments(self, instruction: Instruction) -> dict[str, Any]:
        """What a ready call of this frame passes to its op."""
        call: Call = instruction.detail
        slots = self.slots
        return dict(zip(call.names, [slots[arg] for arg in instruction.args], strict=True)) | dict(call.constants)


ReadyInstruction = tuple[Frame, Instruction]
"""A call whose arguments are there."""
