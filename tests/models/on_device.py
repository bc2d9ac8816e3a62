"""Models whose components run on a pretend GPU, as a worker places them, and their results on the host."""

import numpy as np
import torch

from mstar.nn.pretend_gpu import PretendTensor, count_traffic, pretend_gpu


def place(model, *names):
    """Put these components, or all that run on devices, on a pretend GPU. The others get arguments on the host."""
    for name, component in model.components().items():
        is_placed = name in names if names else component.runs_on_device
        assert component.runs_on_device or not is_placed, f"{name} does not run on devices"
        component.device = pretend_gpu() if is_placed else torch.device("cpu")
    return model


def emitted(outcome):
    """The emissions of a request as tensors on the host, with their kinds."""
    return [(type(one).__name__, torch.as_tensor(one.value).cpu()) for one in outcome.emissions]


def assert_close(actual, expected, **tolerance):
    """Compare the emissions of two runs."""
    assert [kind for kind, _ in actual] == [kind for kind, _ in expected]
    for (_, value), (_, other) in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, other, **tolerance)


def weights_device(network):
    """The one device of all weights and buffers of a network."""
    (device,) = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    return device


def is_on_device(value):
    """Whether a tensor is on the pretend GPU."""
    return isinstance(value, PretendTensor)


def audio_on_host(outcome):
    """The samples that a request emitted, as one array."""
    return np.concatenate([one.value.cpu().numpy() for one in outcome.emissions if type(one).__name__ == "Audio"])


def traffic_of(component, name, columns):
    """Results of a batch of calls, the times that the host waited for the device, and the copies to the device."""
    with count_traffic() as traffic:
        results = component.ops()[name].run(component, columns, len(next(iter(columns.values()))))
    return results, sum(traffic.syncs.values()), sum(traffic.to_device.values())
