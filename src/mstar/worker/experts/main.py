"""Entry point of the process that computes the experts of a component, and nothing else."""

from __future__ import annotations

from typing import Any

from mstar import process_tuning
from mstar.config import ExpertsConfig
from mstar.engine.threads import use_threads
from mstar.plan.planned_model import load_planned_models
from mstar.walk.values import inference_mode
from mstar.worker.channel import Channel


def main(settings: ExpertsConfig) -> None:
    """Answer until the worker ends."""
    models = load_planned_models(settings.models, settings.placements)
    model, _, name = settings.component.rpartition(".")
    models[model].apply_settings(name)
    if settings.options.threads is not None:
        use_threads(settings.options.threads)
    component: Any = models[model].model.components()[name]
    serve(component.load_experts(), settings.device, Channel.from_descriptor(settings.channel))


def serve(layers: list[Any], device: str, channel: Channel) -> None:
    """Compute the experts of `layers` for each message, until the channel is closed."""
    from mstar.nn.devices import open_device  # imports torch

    target = open_device(device)
    layers = [layer.to(target) for layer in layers]
    process_tuning.freeze_heap()
    with inference_mode():
        while True:
            try:
                layer, *inputs = channel.receive()
            except EOFError:
                return
            channel.send(layers[layer](*(each.to(target) for each in inputs)).cpu())
