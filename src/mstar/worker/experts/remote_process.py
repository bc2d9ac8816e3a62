"""The process that computes the experts of a component, as its worker sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.config import ExpertsConfig, WorkerConfig
from mstar.errors import DeviceFailed
from mstar.worker.child_process import ChildProcess

if TYPE_CHECKING:
    from torch import Tensor

_EXIT_TIMEOUT_S = 2.0
"""Seconds in which the exit of the process explains a lost channel."""


class RemoteExpertProcess:
    """Starts the process, which loads while the worker does, and sends it the tokens of one layer at a time."""

    def __init__(self, settings: WorkerConfig, component: str, device: str) -> None:
        def configure(channel: int) -> ExpertsConfig:
            return ExpertsConfig(
                name=f"{settings.name} experts of {component}",
                incarnation=settings.incarnation,
                directory=settings.directory,
                key=b"",
                peers={},
                models=settings.models,
                placements=settings.placements,
                options=settings.options,
                component=component,
                device=device,
                channel=channel,
            )

        self._process = ChildProcess(f"experts of {component}", configure)

    @property
    def bytes_moved(self) -> int:
        """Bytes that were sent to it and received from it."""
        return self._process.channel.bytes_moved

    def run(self, layer: int, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the outputs of the chosen experts of a layer, for each token."""
        channel = self._process.channel
        try:
            channel.send((layer, hidden.cpu(), chosen.cpu(), weights.cpu()))
            return channel.receive().to(hidden.device)
        except (OSError, EOFError) as error:
            self._process.exit_if_ended(_EXIT_TIMEOUT_S)
            raise DeviceFailed(f"the process with the experts was lost: {error}\n  fix: read its log") from error
