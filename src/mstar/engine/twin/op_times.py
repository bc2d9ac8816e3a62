"""Op times of a twin: seconds of a batch, from a profile of the model or from values that the operator sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mstar.config import OpSeconds
from mstar.plan.profile import DeviceCosts, ModelProfile, OpCosts


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Seconds of batches of the ops of one model.

    1. An op in `set_times` takes those seconds.
    2. Else, the profile is interpolated: seconds of each call alone by its length, times the ratio of the batch size.
    3. Without either, the op takes the time of making its synthetic outputs.
    """

    costs: Mapping[str, OpCosts]
    """Measured costs by "component.op"."""
    set_times: Mapping[str, OpSeconds]
    scale: float = 1.0
    """Factor of all times."""

    @classmethod
    def from_profile(
        cls, profile: ModelProfile | None, device: str, set_times: Mapping[str, OpSeconds], scale: float = 1.0
    ) -> OpTimes:
        """Times of a device of a profile; of its first device if `device` is empty. Raises LoadError."""
        costs: dict[str, OpCosts] = {}
        if profile is not None:
            on_device: DeviceCosts = profile.device(device) if device else profile.devices[0]
            for each in on_device.ops:
                name = each.op.partition("[")[0]  # without static arguments
                if each.mean_s > 0:
                    costs.setdefault(name, each)
        return cls(costs, set_times, scale)

    def batch_s(self, op: str, lengths: Sequence[int]) -> float:
        """Seconds of a batch of calls of these lengths; 0 if nothing is known of the op."""
        if (given := self.set_times.get(op)) is not None:
            return self.scale * (given.batch_s + given.position_s * sum(lengths))
        if (costs := self.costs.get(op)) is None:
            return 0.0
        alone = sum(map(costs.seconds_alone, lengths)) / len(lengths)
        return self.scale * alone * costs.batch_ratio(len(lengths))
