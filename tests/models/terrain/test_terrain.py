"""Terrain with its published weights: heights equal those of the published sampler, alone and concurrently."""

from collections import Counter

import numpy as np
import pytest

from mstar.errors import Unsupported
from mstar.models.terrain import terrain
from mstar.models.terrain.terrain import Terrain
from mstar.models.terrain.unet import Shader
from mstar.requests import ImageInput, ImageRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import parity_all
from tests.integration.deployment_clients import Client, Oracle, add_frontend, run_clients
from tests.models.concurrent_clients import disconnecting_clients, in_process, in_processes
from tests.tiers import ci_cases

DRAWINGS = [
    ImageRequest("a hill", seed=5),
    ImageRequest("difficulty 90", seed=-1, steps=3),
    ImageRequest("Difficulty: 20, with snow", seed=2**62, partial_images=1),
    ImageRequest("difficulty 100", seed=5, steps=3, partial_images=1),
]


@pytest.fixture(scope="module")
def model():
    return Terrain()


def pictures(outcome):
    return [np.asarray(one.value) for one in outcome.emissions]


def land(model, seed, difficulty, steps=1):
    """Return the heights of the last step."""
    noise, heights, difficulty = model.denoiser.begin(seed, difficulty)
    for left in range(steps, 0, -1):
        heights, noise, _ = model.denoiser.denoise(heights, noise, difficulty, left, steps)
    return heights


# ---------------------------------------------------------------- relief
def test_relief_is_lit_from_the_left_and_peaks_are_white():
    slope = np.linspace(-0.6, 0.2, 128, dtype=np.float32)
    plain = np.full((128, 128), -0.2, np.float32)
    right, left, flat = (Shader().relief(one, plain, 0, 1) for one in (plain + slope + 0.2, plain - slope - 0.2, plain))
    assert right.shape == (128, 128, 3)
    assert right.dtype == np.uint8
    middle = [int(one[64, 64].sum()) for one in (right, left)]
    assert middle[0] > 1.1 * middle[1]
    low, high = right[64, 4].astype(int), right[64, 123].astype(int)
    assert low[1] > low[0] + 20, "green"
    assert high.min() > 200, "white"
    assert np.ptp(flat, axis=(0, 1)).max() == 0


def test_noise_is_visible_while_steps_are_left():
    plain, noise = np.zeros((2, 128, 128), np.float32)
    noise += np.random.default_rng(0).standard_normal(noise.shape, np.float32)
    smooth = np.linspace(-0.5, 0.3, 128, dtype=np.float32) + plain
    rough = [np.abs(np.diff(Shader().relief(smooth, noise, left, 6).astype(int), axis=0)).mean() for left in (5, 1, 0)]
    assert rough[0] > 4 * rough[1] > 0
    assert rough[2] == 0


# ---------------------------------------------------------------- requests
@pytest.mark.parametrize(
    ("prompt", "difficulty"), [("a hill", 0), ("", 0), ("difficulty 70", 70), ("rocks, Difficulty: 1!", 1)]
)
def test_a_prompt_can_set_the_difficulty(prompt, difficulty):
    assert terrain.parse_difficulty(prompt) == difficulty


@pytest.mark.parametrize("number", ["0", "101", "0.7"])
def test_an_invalid_difficulty_is_rejected(number):
    with pytest.raises(Unsupported, match=rf"difficulty {number} is not an integer from 1 to 100\n  fix: "):
        Terrain().run(ImageRequest(f"difficulty {number}"))


PICTURE = ImageInput(np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize(
    "options", [{"width": 512}, {"guidance": 2.0}, {"negative_prompt": "snow"}, {"sources": (PICTURE,)}]
)
def test_unsupported_requests_are_rejected(options):
    with pytest.raises(Unsupported, match=r"images of 128 x 128 pixels[\s\S]*fix: "):
        Terrain().run(ImageRequest("a hill", **options))


# ---------------------------------------------------------------- published weights
def ran(runtime):
    """Number of runs per op."""
    calls = Counter()
    for name, count in runtime.batches:
        calls[name] += count
    return calls


def test_without_partial_images_only_the_last_is_rendered(model):
    runtime = LocalRuntime(model, seed=1)
    outcomes = runtime.run_all([ImageRequest("difficulty 80", seed=7), ImageRequest("", seed=10, steps=2)])
    assert ran(runtime) == {"denoiser.begin": 2, "denoiser.denoise": 1 + 2, "shader.relief": 2}
    for outcome in outcomes:
        (picture,) = pictures(outcome)
        assert picture.std() > 20


def test_served_results_equal_eager_results(model):
    oracle = Oracle(model, DRAWINGS[::2])
    with in_process("terrain", model) as deployment:
        clients = run_clients(add_frontend(deployment, "front_terrain"), "terrain", oracle, 2)
    assert [client.output_counts for client in clients] == [{"Image": 1}, {"Image": 2}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "partials", "denoised", "shown"), ci_cases([(0, 3, 4, 4), (2, 9, 2, 2), (4, 1, 4, 2)], (4, 1, 4, 2))
)
def test_partial_images_are_rendered_on_request(model, steps, partials, denoised, shown):
    runtime = LocalRuntime(model, seed=2)
    (outcome,) = runtime.run_all([ImageRequest("", seed=3, steps=steps, partial_images=partials)])
    assert ran(runtime) == {"denoiser.begin": 1, "denoiser.denoise": denoised, "shader.relief": shown}
    seen = pictures(outcome)
    assert len(seen) == shown
    rough = [np.abs(np.diff(one.astype(int), axis=0)).mean() for one in seen]
    assert rough[0] > 2 * rough[-1], "noise is gone"
    (last,) = pictures(model.run(ImageRequest("", seed=3, steps=denoised)))
    np.testing.assert_array_equal(seen[-1], last)


@pytest.mark.slow
def test_one_step_gives_the_heights_of_the_published_sampler(model):
    from terrain_diffusion import TerrainGenerator

    published = TerrainGenerator(device="cpu")
    for seed, difficulty in ((0, 1), (3, 70), (4, 100), (5, 0)):
        expected = published.generate(difficulty=difficulty or "random", seed=seed, zero_floor=False)
        bent = np.arcsinh(published.height_range / published.asinh_scale)
        metres = published.asinh_scale * np.sinh(np.clip((land(model, seed, difficulty) + 1) / 2, 0, 1) * bent)
        assert np.ptp(expected) > 0.3
        np.testing.assert_allclose(metres, expected[0], rtol=0, atol=1e-4)


@pytest.mark.nightly
def test_more_steps_give_nearly_the_same_terrain(model):
    for seed in (7, 10):
        one, four, other = land(model, seed, 80), land(model, seed, 80, steps=4), land(model, seed + 1, 80)
        alike, unlike = (np.corrcoef(one.flat, heights.flat)[0, 1] for heights in (four, other))
        assert 0.95 < alike < 0.9999
        assert unlike < 0.8


@pytest.mark.nightly
def test_higher_difficulty_gives_higher_terrain(model):
    heights = [np.mean([np.ptp(land(model, seed, difficulty)) for seed in range(3)]) for difficulty in (1, 50, 100)]
    assert heights[0] < heights[1] < heights[2]


# ---------------------------------------------------------------- placements
@pytest.mark.nightly
def test_served_results_equal_eager_results_under_any_schedule(model):
    parity_all(model, DRAWINGS, schedules=2)


@pytest.mark.nightly
def test_a_short_request_does_not_wait_for_a_long_one(model):
    with in_process("terrain", model) as deployment:
        front_end = add_frontend(deployment, "front_terrain")
        long, short = (Client(front_end, "terrain", ImageRequest("", seed=steps, steps=steps)) for steps in (4, 1))
        assert short.wait().log[-1][0] < long.wait().log[-1][0]


@pytest.fixture(scope="module")
def oracle(model):
    return Oracle(model, DRAWINGS)


PLACES = {
    "one worker": {"denoiser": '"a"', "shader": '"a"'},
    "apart": {"denoiser": '"a"', "shader": '"b"'},
    "two that denoise": {"denoiser": '["a", "b"]', "shader": '"a"'},
}


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", PLACES)
def test_processes_give_the_eager_result(places, oracle):
    """Eight concurrent requests with different seeds and steps, while others disconnect."""
    with in_processes("terrain", terrain.__file__, PLACES[places]) as deployment:
        front_end = add_frontend(deployment, "front_terrain")
        with disconnecting_clients(front_end, "terrain", DRAWINGS, 3, 0.5):
            run_clients(front_end, "terrain", oracle, 8)
