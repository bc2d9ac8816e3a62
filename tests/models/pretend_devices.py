"""Models on a pretend GPU: each component that runs on devices gets it, as a worker with a device does."""

import numpy as np

from mstar.nn.pretend_gpu import count_traffic, pretend_gpu


def on_pretend_gpu(model):
    """Set the device of the components that run on one. Call it before anything is loaded."""
    for component in model.components().values():
        if component.runs_on_device:
            component.device = pretend_gpu()
    return model


def audio_on_host(outcome):
    """The samples that a request emitted, as one array."""
    return np.concatenate([one.value.cpu().numpy() for one in outcome.emissions if type(one).__name__ == "Audio"])


def traffic_of(component, name, columns):
    """Results of a batch of calls, the times that the host waited for the device, and the copies to the device."""
    with count_traffic() as traffic:
        results = component.ops()[name].run(component, columns, len(next(iter(columns.values()))))
    return results, sum(traffic.syncs.values()), sum(traffic.to_device.values())
