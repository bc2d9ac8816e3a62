"""A call that is ready to run, and its slack: how long it can wait without making its client's output late."""

from __future__ import annotations

from math import inf

import msgspec

from mstar.engine.jobs import Job
from mstar.plan.runtime.frame import Frame
from mstar.plan.tables import Instruction
from mstar.wire.slo import REALTIME_KINDS
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.tuning import DEFAULT_TUNING


class ReadyCall(msgspec.Struct, eq=False):  # cheaper to create than a dataclass: there is one per token
    """A call whose arguments are available."""

    walk_run: WalkRun
    frame: Frame
    instruction: Instruction
    ready_since: float
    number: int = 0
    """Its place among the calls of its batch key: earlier ones have lower numbers."""
    job: Job | None = None
    """Progress of a chunked call that has run in part."""
    slack: float = inf
    """Seconds it can wait, as of the last `update_slack`."""
    work_s: float = 0.0
    """Predicted seconds of work up to the emission that determines its slack."""
    is_unstarted: bool = False
    """Whether that emission is the first of its kind for the client."""

    def update_slack(
        self, now: float, cost_model: CostModel, delivery_margin_s: float = DEFAULT_TUNING.delivery_margin_s
    ) -> None:
        """Recompute the slack: the minimum over all emissions that this call leads to."""
        self.slack, self.is_unstarted = inf, False
        walk_run, call = self.walk_run, self.instruction.detail
        is_untimed = not (walk_run.playback_clocks or walk_run.has_text_deadlines)
        for path in call.paths:
            if is_untimed and path.kind not in REALTIME_KINDS:
                continue
            due, is_started = walk_run.next_due(path.kind)
            if due == inf:
                continue
            work_s = cost_model.time_to_output_s(walk_run.start.model, call, path, self.frame)
            slack = due - now - work_s - delivery_margin_s
            if slack < self.slack:
                self.slack, self.work_s, self.is_unstarted = slack, work_s, not is_started
