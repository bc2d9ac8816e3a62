"""pi0.5 served by `mstar serve` to openpi's own client: equal to the actions that the model computes locally."""

import json
from urllib.parse import urlsplit

import numpy as np
import pytest

from mstar.models.pi05.pi05 import Pi05
from mstar.requests import ActionRequest
from tests.clients.test_clients import run_client, run_server
from tests.models.pi05 import pi05_tiny as tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
HERE = """
from mstar.models.pi05.pi05 import Pi05


class Here(Pi05):
    def __init__(self):
        super().__init__({saved!r})
"""


@pytest.mark.nightly
def test_openpi_gets_the_actions_of_pi05(tmp_path):
    (tmp_path / "saved").mkdir()
    saved, file = tiny.save(tmp_path / "saved"), tmp_path / "pi05_here.py"
    file.write_text(HERE.format(saved=saved))
    seen = [tiny.observation(number, cameras) for number, cameras in enumerate((3, 1, 2))]
    for number, one in enumerate(seen):
        np.savez(tmp_path / f"seen_{number}.npz", **one)
    with run_server(f"{file}:Here", "--in-process") as url:
        address = urlsplit(url)
        robot, *error = run_client("openpi", "act_pi05.py", address.hostname, str(address.port), tmp_path)
    model = Pi05(saved)
    assert json.loads(robot) == model.robot_spec()
    assert "fix: send these names" in "".join(error)
    for seed, one in enumerate(seen):  # pictures that the client makes small are as those that the model makes small
        expected = model.run(ActionRequest(one, "pick up the cup", seed)).emissions[-1].value
        np.testing.assert_allclose(np.load(tmp_path / f"actions_{seed}.npy"), expected, rtol=0, atol=1e-5)
