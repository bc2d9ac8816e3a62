"""Entry point of a rank of a worker, except rank 0: loads its part of the components, and repeats what rank 0 does."""

from __future__ import annotations

import os
from typing import NoReturn

from mstar import process_tuning
from mstar.config import RankConfig
from mstar.errors import DeviceFailed
from mstar.plan.planned_model import load_planned_models
from mstar.wire.messages import Peer
from mstar.worker.channel import Channel
from mstar.worker.child_process import CHILD_LOST_STATUS
from mstar.worker.loading import components_with_ranks, load_components
from mstar.worker.ranks.follower import Follower, RanksDiffer, log
from mstar.worker.ranks.rank_processes import join


def main(settings: RankConfig) -> None:
    """Run a rank until rank 0 ends."""
    models = load_planned_models(settings.models, settings.placements)
    peer = Peer(settings.worker.name, settings.worker.incarnation)
    with join(settings.address, settings.rank, settings.ranks) as rank:
        load_components(models, settings.worker, peer, rank)
        process_tuning.freeze_heap()
        components = components_with_ranks(models, peer.worker)
        try:
            Follower(components, Channel.from_descriptor(settings.channel)).run()
        except (DeviceFailed, RanksDiffer) as error:
            _end_process(error)


def _end_process(error: Exception) -> NoReturn:
    log.critical("this rank ends: %s", error, exc_info=error)
    os._exit(CHILD_LOST_STATUS)  # leaving the group can wait for the other ranks
