"""Faces on a pretend GPU: the pixels of the CPU, from the whole model and from one component on the device."""

import numpy as np
import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.models.faces.faces import Faces
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.testing.local_runtime import LocalRuntime
from tests.models.concurrent_clients import emitted_values, run_clients
from tests.models.faces.faces_tiny import save
from tests.models.faces.test_faces import DRAWINGS
from tests.models.on_device import assert_close, emitted, place, weights_device


@pytest.mark.parametrize("names", [(), ("mapping",), ("synthesis",), ("upsampler",)], ids="+".join)
def test_pixels_are_those_of_the_cpu(tmp_path, names):
    folder = save(tmp_path)
    model = place(Faces(folder), *names)
    for outcome, request in zip(LocalRuntime(model, seed=1).run_all(DRAWINGS), DRAWINGS, strict=True):
        assert_close(emitted(outcome), emitted(Faces(folder).run(request)), rtol=0, atol=1)
    for name in ("mapping", "synthesis"):
        assert (weights_device(getattr(model, name).network) == pretend_gpu()) == (not names or name in names)


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_workers_with_devices_send_the_pixels_of_the_cpu(tmp_path):
    folder = save(tmp_path)
    placement = """
        place = { mapping = "gpu0", synthesis = "gpu1", upsampler = "gpu0" }
        workers = { gpu0 = { device = "pretend" }, gpu1 = { device = "pretend" } }
    """
    with LocalLauncher({"faces": f"faces@{folder}"}, {"faces": placement}, standby=False) as deployment:
        clients = run_clients(deployment, "faces", DRAWINGS)
    for client, request in zip(clients, DRAWINGS, strict=True):
        expected = [value.numpy() for _, value in emitted(Faces(folder).run(request))]
        for actual, other in zip(emitted_values(client, "Image"), expected, strict=True):
            np.testing.assert_allclose(np.asarray(actual).astype(int), other.astype(int), rtol=0, atol=1)
