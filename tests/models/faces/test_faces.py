"""Faces: pixels equal those of the published networks, smaller images come first, and batches equal single runs."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import avg_pool2d, conv_transpose2d

from mstar.errors import LoadError
from mstar.models.faces.faces import Faces
from mstar.models.faces.network import inverse_haar, load_part
from mstar.models.faces.stages import DEFAULT_WEIGHTS
from mstar.requests import ImageInput, ImageRequest
from mstar.testing.parity import parity_all
from tests.integration.deployment_clients import Oracle, add_frontend, run_clients
from tests.models.concurrent_clients import disconnecting_clients, in_process, in_processes
from tests.models.faces.faces_tiny import CONFIG, save

SIDE = 32
DRAWINGS = [
    ImageRequest("me", seed=5),
    ImageRequest("me", seed=-1, partial_images=3),
    ImageRequest("you", seed=2**62, partial_images=1),
]
GOLDEN = Path(__file__).parents[1] / "golden" / "faces" / "openvino.safetensors"
fetched = pytest.mark.skipif(
    not Path(DEFAULT_WEIGHTS).expanduser().exists(),
    reason="the weights of faces are not there: run scripts/fetch-faces",
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("faces"))


@pytest.fixture(scope="module")
def model(saved):
    return Faces(saved)


def pictures(model, drawing):
    return [np.asarray(one.value) for one in model.run(drawing).emissions]


def test_the_inverse_wavelet_equals_two_filters(model):
    """Apply one filter after the other along rows and columns, as in the published graph."""
    bands = torch.randn(2, 12, 4, 6, generator=torch.Generator().manual_seed(0))
    low, (rows, columns, both) = bands[:, :3], bands[:, 3:].unflatten(1, (3, 3)).unbind(2)
    soft, sharp = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5

    def along(x, filter, *shape):
        return conv_transpose2d(x, filter.view(1, 1, *shape).repeat(3, 1, 1, 1), stride=shape, groups=3)

    left = along(low, soft, 2, 1) + along(rows, sharp, 2, 1)
    right = along(columns, soft, 2, 1) + along(both, sharp, 2, 1)
    torch.testing.assert_close(inverse_haar(bands), along(left, soft, 1, 2) + along(right, sharp, 1, 2))


def test_smaller_images_come_first_and_show_the_same(model):
    shown = pictures(model, DRAWINGS[1])
    assert [one.shape for one in shown] == [(side, side, 3) for side in (4, 8, 16, SIDE)]
    assert shown[-1].std() > 10
    assert 0 < shown[-1].min() < shown[-1].max() < 255  # nothing is clipped, so means are exact
    for small, large in pairwise(shown):
        mean = avg_pool2d(torch.tensor(large).permute(2, 0, 1).float(), 2).permute(1, 2, 0).numpy()
        assert np.abs(small - mean).max() <= 1


def test_only_the_seed_selects_the_face(model):
    one, other = pictures(model, DRAWINGS[0]), pictures(model, ImageRequest("you", seed=5, partial_images=2))
    assert len(one) == 1
    np.testing.assert_array_equal(one[-1], other[-1])
    assert (one[-1] != pictures(model, ImageRequest("me", seed=6))[-1]).mean() > 0.5


def test_styles_are_truncated_to_half(model):
    network = model.mapping.network
    drawn = torch.tensor(np.random.default_rng(5).standard_normal(8, np.float32))
    torch.testing.assert_close(torch.as_tensor(model.mapping.style(5)), (network(drawn) + network.mean) / 2)


def test_served_results_equal_eager_results_under_any_placement(model):
    parity_all(model, DRAWINGS, schedules=4)


def run_all(deployment, model, leavers):
    """Eight concurrent clients get the right image, while others disconnect."""
    front_end = add_frontend(deployment, "front_faces")
    with disconnecting_clients(front_end, "faces", DRAWINGS, leavers, 0.02):
        run_clients(front_end, "faces", Oracle(model, DRAWINGS), 8)


def test_concurrent_requests_equal_single_requests(model):
    with in_process("faces", model) as deployment:
        run_all(deployment, model, leavers=4)


@pytest.mark.parametrize(
    "options",
    [
        {"width": 512, "height": 512},
        {"negative_prompt": "hats"},
        {"sources": (ImageInput(np.zeros((4, 4, 3), np.uint8)),)},
    ],
)
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"images of 1024 x 1024 pixels[\s\S]*fix: "):
        model.run(ImageRequest("me", **options))
    assert len(pictures(model, ImageRequest("me", width=1024, height=1024))) == 1


def test_mismatched_weights_are_rejected(saved, tmp_path):
    with pytest.raises(LoadError, match=r"no weights at[\s\S]*fix: "):
        load_part(str(tmp_path / "none"), "mapping")
    with pytest.raises(LoadError, match=r"lacks config.json or model.safetensors\n  fix: "):
        load_part(str(tmp_path), "mapping")
    tensors = load_file(Path(saved, "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "depth": 1}))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=r"the mapping network: `layers.1.bias`, `layers.1.weight`[\s\S]*fix: "):
        load_part(str(tmp_path), "mapping")
    save_file({**tensors, "synthesis.tint.bias": torch.zeros(9)}, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=r"the synthesis network: `tint.bias`"):
        load_part(str(tmp_path), "synthesis")


PLACES = {
    "one worker": {"mapping": '"a"', "synthesis": '"a"', "upsampler": '"a"'},
    "apart": {"mapping": '"a"', "synthesis": '"b"', "upsampler": '"c"'},
    "two synthesis replicas": {"mapping": '"a"', "synthesis": '["b", "c"]', "upsampler": '"a"'},
}


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", PLACES)
def test_processes_give_the_eager_result(places, saved, model):
    with in_processes("faces", f"faces@{saved}", PLACES[places]) as deployment:
        run_all(deployment, model, leavers=8)


@fetched
@pytest.mark.slow
def test_published_weights_equal_the_published_graphs():
    golden, model = load_file(GOLDEN), Faces()
    torch.testing.assert_close(model.mapping.network(golden["drawn"]), golden["mapped"], rtol=0, atol=1e-4)
    bands = torch.as_tensor(model.synthesis.bands(golden["style"]))
    torch.testing.assert_close(inverse_haar(bands[None])[0, :, ::8, ::8], golden["pixels"], rtol=0, atol=1e-4)
    (whole,) = pictures(model, ImageRequest("me", seed=3))
    assert whole.shape == (1024, 1024, 3)
    expected = ((golden["pixels"].clamp(-1, 1) + 1) * 127.5).permute(1, 2, 0).numpy()
    assert np.abs(whole[::8, ::8] - expected).max() < 0.6  # a seed gives the same face everywhere
