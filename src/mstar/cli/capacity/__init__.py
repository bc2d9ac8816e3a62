"""`mstar profile` and `mstar plan-capacity`: what a model costs by device, and which placement holds an SLO."""

from mstar.cli.capacity.plan_command import add_plan_capacity
from mstar.cli.capacity.profile_command import add_profile

__all__ = ["add_plan_capacity", "add_profile"]
