"""BAGEL: answers and images equal those of the published code, for every request type and placement."""

import functools
import itertools
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar import KV
from mstar.errors import LoadError
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.bagel import guidance, processor, vae
from mstar.models.bagel.bagel import Bagel
from mstar.models.bagel.chat import BagelChat
from mstar.models.bagel.checkpoint import THINKING_PROMPT, Checkpoint, Sizes
from mstar.models.bagel.guidance import GuidanceParams
from mstar.models.bagel.noise import draw_noise
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.requests import ChatRequest, Finish, ImageInput, ImageRequest, Message, Sampling
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from mstar.walk.component import Op
from tests.models.bagel import bagel_tiny as tiny
from tests.models.bagel.bagel_published import BEGIN, END, Context, GenerationParams, Published
from tests.models.concurrent_clients import emitted_values, in_process, run_clients
from tests.models.transcripts import one_thread
from tests.tiers import ci_cases

CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("bagel"))


@pytest.fixture(scope="module")
def model(saved):
    return Bagel(saved)


@pytest.fixture(scope="module")
def published(saved):
    return Published(saved)


@pytest.fixture(scope="module")
def golden():
    return load_file(tiny.GOLDEN / "cases.safetensors")


@pytest.fixture
def ran(monkeypatch):
    """The ops that run, in order: names, inputs, and results per row."""
    seen, run = [], Op.run

    def spy(op, component, columns, *more, **others):
        results = run(op, component, columns, *more, **others)
        seen.append(SimpleNamespace(of=component.name, name=op.name, columns=columns, results=results))
        return results

    monkeypatch.setattr(Op, "run", spy)
    return seen


# ---------------------------------------------------------------- published code
CASES = {
    "t2i": (GenerationParams(image=1.0), (64, 64)),
    "t2i_rect_channel": (GenerationParams(image=1.0, interval=(0, 1), renorm="channel", renorm_min=0.3), (48, 32)),
    "edit": (GenerationParams(image=2.0, interval=(0, 1)), (64, 64)),
    "edit_text_channel": (GenerationParams(image=2.0, interval=(0, 1), renorm="text_channel"), (64, 64)),
}
FAST_CASES = [
    name if name in ("t2i_rect_channel", "edit") else pytest.param(name, marks=pytest.mark.slow) for name in CASES
]


def picture_of(golden):
    return ImageInput(((golden["image_in"] + 1) * 127.5).round().byte().permute(1, 2, 0).contiguous().numpy())


def check_pixels(drawn, expected):
    """Equal, except for rounding to the next of 256 values."""
    apart = (drawn.int() - expected.int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 1e-3


@pytest.mark.parametrize("name", FAST_CASES)
def test_the_reference_implementation_equals_the_published_code(published, golden, name):
    options, (width, _) = CASES[name]
    image, ids = golden["image_in"], golden[f"{name}.text_ids"].tolist()
    source = [(image, golden[f"{name}.vae_noise"][0], image)] if "edit" in name else []
    contexts = published.contexts([*source, ids])
    assert [one.length for one in contexts] == golden[f"{name}.kv_lens"].tolist()
    drawn = published.draw(golden[f"{name}.init_noise"], width // 8, contexts, options)
    torch.testing.assert_close(drawn, golden[f"{name}.final_latent"], **CLOSE)
    check_pixels(published.picture(drawn, width // 8), golden[f"{name}.image_uint8"])


@pytest.mark.parametrize("name", FAST_CASES)
def test_images_equal_the_published_code(saved, golden, ran, monkeypatch, name):
    options, (width, height) = CASES[name]
    monkeypatch.setattr(guidance, "draw_noise", lambda *_: golden[f"{name}.init_noise"])
    monkeypatch.setattr(vae, "draw_noise", lambda *_: golden[f"{name}.vae_noise"][0])
    sources = (picture_of(golden),) if "edit" in name else ()
    own = Bagel(
        saved,
        guidance_params=GuidanceParams(
            24, options.text, options.image, options.interval, options.renorm, options.renorm_min
        ),
    )
    outcome = own.run(ImageRequest(tiny.words(golden[f"{name}.text_ids"]), width, height, sources=sources))
    check_pixels(outcome.emissions[-1].value, golden[f"{name}.image_uint8"])
    (decoded,) = (one for one in ran if one.name == "decode")
    torch.testing.assert_close(decoded.columns["x"][0], golden[f"{name}.final_latent"], **CLOSE)
    flows = [one.results[0][0] for one in ran if one.name == "flow"]
    assert len(flows) == golden[f"{name}.num_branches"].sum()
    for flow, kind in zip(flows, ("cond", "text", "img")[: golden[f"{name}.num_branches"][0]], strict=False):
        torch.testing.assert_close(flow, golden[f"{name}.step0.v_{kind}"], **CLOSE)


@pytest.mark.parametrize("name", ["und", "und2"])
def test_answers_equal_the_published_code(model, published, golden, name):
    expected, text = golden[f"{name}.tokens"].tolist(), golden[f"{name}.text_ids"]
    context = Context()
    published.read_picture(published.seen(golden["image_in"]), context, is_drawn=False)
    published.read(text.tolist(), context)
    assert published.write(context, len(expected)) == expected
    turns = (Message("user", (picture_of(golden), tiny.words(text))),)
    outcome = model.run(ChatRequest(turns, Sampling(max_tokens=len(expected) - 1)))
    assert [BEGIN, *text_of(outcome)] == expected
    assert outcome.result == Finish("length", {"text": len(text) + 1, "image": 66})


def test_encoders_equal_the_published_ones(model, golden, monkeypatch):
    monkeypatch.setattr(vae, "draw_noise", lambda *_: golden["edit.vae_noise"][0])
    latents, columns = model.vae.encode(golden["image_in"], 0, 1)
    expected = golden["edit.vae_latent"][0].reshape(4, 8, 2, 8, 2).permute(1, 3, 2, 4, 0).reshape(64, 16)
    torch.testing.assert_close(latents, expected, **CLOSE)
    assert columns == 8
    torch.testing.assert_close(model.vision_encoder.encode(golden["image_in"]), golden["edit.vit_llm_embed"], **CLOSE)


def test_a_vae_with_levels_of_different_width(golden, tmp_path):
    folder = tiny.save(tmp_path)
    save_file(tiny.Flux(widths=(32, 64), blocks=2, channels=4).tensors, tmp_path / "ae.safetensors")
    own, published = vae.Vae(Checkpoint(folder)), Published(folder)
    expected, height, width = published.vae.encoded(golden["image_in"], draw_noise((4, 32, 32), 3, 1))
    latents, columns = own.encode(golden["image_in"], 3, 1)
    assert (height, width) == (16, columns)
    torch.testing.assert_close(latents, expected, **CLOSE)
    actual, picture = own.decode(latents, columns).int(), published.picture(expected, columns).int()
    assert picture.float().std() > 10, "nothing is like nothing"
    torch.testing.assert_close(actual, picture, rtol=0, atol=1)


# ---------------------------------------------------------------- every request type
def drawn(seed, shape):
    return np.random.default_rng(seed).integers(0, 255, (*shape, 3), np.uint8)


SQUARE, WIDE = ImageInput(drawn(0, (64, 64))), ImageInput(drawn(1, (64, 96)))
SHORT, LONGER = "w20 w30 w40", "w120 w130 w140 w150 w160 w170 w180 w190"
REQUESTS = {
    "drawn": ImageRequest(SHORT, 64, 64, steps=8, seed=1),
    "wide": ImageRequest(LONGER, 48, 32, steps=5, guidance=2.5, seed=2),
    "shown": ImageRequest(LONGER, 32, 64, steps=7, partial_images=2, seed=3),
    "changed": ImageRequest(SHORT, steps=6, seed=4, sources=(SQUARE,)),
    "joined": ImageRequest(LONGER, 32, 40, steps=4, seed=5, sources=(SQUARE, WIDE)),
    "seen": ChatRequest((Message("user", (WIDE, SHORT)),), Sampling(max_tokens=9)),
    "asked": ChatRequest((Message("system", (SHORT,)), Message("user", (LONGER,))), Sampling(max_tokens=14)),
    "talk": ChatRequest((Message("user", (LONGER, SQUARE, SHORT, WIDE)),), Sampling(max_tokens=5)),
}


def text_of(outcome):
    return [int(one.value) for one in outcome.emissions if type(one).__name__ == "Text"]


def pictures_of(outcome):
    return [np.asarray(one.value) for one in outcome.emissions if type(one).__name__ == "Image"]


def ids_of(text):
    return [BEGIN, *(int(word[1:]) if word[:1] == "w" and word[1:].isdigit() else 0 for word in text.split()), END]


class Expected:
    """Results of our reimplementation of the published loop for a request: text tokens and images."""

    def __init__(self, published, model):
        self._published, self._reader = published, model.processor

    @functools.cache  # noqa: B019 - it lives as long as the tests
    def __call__(self, name, thoughts=0):
        request = REQUESTS[name]
        return self._answered(request) if isinstance(request, ChatRequest) else self._drawn(request, thoughts)

    def _answered(self, chat):
        context = Context()
        for part in (part for turn in chat.messages for part in turn.parts):
            if isinstance(part, str):
                self._published.read(ids_of(part), context)
            else:
                self._published.read_picture(
                    self._published.seen(self._reader.vit_pixels(part)), context, is_drawn=False
                )
        return self._published.write(context, chat.sampling.max_tokens + 1)[1:], []

    def _drawn(self, request, thoughts):
        sources, width, height = [], request.width, request.height
        for number, picture in enumerate(request.sources, 1):
            pixels, wide, high = self._reader.vae_pixels(picture)
            width, height = request.width or wide, request.height or high
            sources.append(
                (pixels, draw_noise((4, high // 4, wide // 4), request.seed, number), self._reader.vit_pixels(picture))
            )
        system = ids_of(THINKING_PROMPT) if thoughts else None
        main, *others = self._published.contexts([*sources, ids_of(request.prompt)], system)
        thought = self._published.write(main, thoughts + 1)[1:] if thoughts else []
        if thoughts:
            self._published.read([BEGIN, *thought, END], main)
        start = draw_noise((height // 8 * width // 8, 16), request.seed, 0)
        options = GenerationParams(request.steps + 1, text=request.guidance or 4.0)
        x = self._published.draw(start, width // 8, (main, *others), options)
        return thought, [self._published.picture(x, width // 8).numpy()]


@pytest.fixture(scope="module")
def expected(published, model):
    return Expected(published, model)


def assert_right(text, pictures, expected):
    """Pixels are truncated, so rounding can change one by 1."""
    assert text == expected[0]
    for actual, one in zip(pictures[-1:], expected[1], strict=True):
        assert actual.dtype == np.uint8
        assert one.std() > 10, "nothing is like nothing"
        np.testing.assert_allclose(actual.astype(int), one.astype(int), rtol=0, atol=1)


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_type_equals_the_published_code(model, expected, name):
    outcome = model.run(REQUESTS[name])
    assert_right(text_of(outcome), pictures_of(outcome), expected(name))


@pytest.mark.parametrize("name", ["drawn", pytest.param("changed", marks=pytest.mark.slow)])
def test_thinking_before_drawing(saved, expected, name):
    thinking = Bagel(saved, thinking_sampling=Sampling(max_tokens=6))
    outcome = thinking.run(REQUESTS[name])
    assert (
        outcome.result.prompt_tokens["text"] == len(ids_of(THINKING_PROMPT)) + len(ids_of(SHORT)) + 1
    )  # the start token of the plan
    assert len(text_of(outcome)) == 6
    assert_right(text_of(outcome), pictures_of(outcome), expected(name, thoughts=6))
    assert not np.array_equal(expected(name)[1][0], expected(name, thoughts=6)[1][0])


def test_previews_extrapolate_the_flow(model, published, expected):
    request, options = REQUESTS["shown"], GenerationParams(8)
    contexts, x = published.contexts([ids_of(request.prompt)]), draw_noise((32, 16), request.seed, 0)
    moments = torch.linspace(1, 0, options.moments)
    moments = (3 * moments / (1 + 2 * moments)).tolist()
    sketches = []
    for step, (time, following) in enumerate(itertools.pairwise(moments)):
        v = published.guided(x, time, 4, contexts, options, is_on=time > 0.4)
        if step in (1, 3):  # two previews of seven steps, after the first two and the next two
            sketches.append(published.picture(x - v * time, 4).numpy())
        x = x - v * (time - following)
    shown = pictures_of(model.run(request))
    assert len(shown) == 3
    for actual, one in zip(shown, [*sketches, *expected("shown")[1]], strict=True):
        np.testing.assert_allclose(actual.astype(int), one.astype(int), rtol=0, atol=1)
    assert not np.array_equal(shown[0], shown[1])


# ---------------------------------------------------------------- unneeded ops do not run
def counted(ran, model, request):
    ran.clear()
    model.run(request)
    return Counter(f"{one.of}.{one.name}" for one in ran)


def test_unneeded_ops_do_not_run(model, ran):
    steps = 8
    guided = sum(
        guidance.DrawParams.from_request(REQUESTS["drawn"], GuidanceParams(), (0, 0), is_text_only=True)
        .flow_step(n)
        .is_text_guided
        for n in range(steps)
    )
    assert 0 < guided < steps
    drawing = counted(ran, model, REQUESTS["drawn"])
    assert drawing == {
        "processor.tokenize": 1,
        "lm.hidden_states": 1,
        "guidance.begin": 1,
        "vae.decode": 1,
        "lm.finish_image": 1,
        "guidance.advance": steps,
        "lm.flow": steps + guided,
    }
    changing = counted(ran, model, replace(REQUESTS["changed"], steps=steps))
    assert changing["lm.flow"] == steps + 2 * guided
    once = ("vae.encode", "vision_encoder.encode", "lm.read_image", "lm.read_latents", "vae.decode")
    assert [changing[name] for name in (*once, "lm.hidden_states")] == [1, 1, 1, 1, 1, 2]
    talking = counted(ran, model, REQUESTS["seen"])
    assert {name.split(".")[0] for name in talking} == {"processor", "vision_encoder", "lm"}
    assert talking["lm.flow"] == talking["lm.read_latents"] == 0
    assert talking["vision_encoder.encode"] == talking["lm.read_image"] == 1


def test_without_guidance_only_the_main_branch_runs(model, ran):
    assert counted(ran, model, replace(REQUESTS["changed"], guidance=1.0))["lm.flow"] == REQUESTS["changed"].steps


def test_deployments_and_workers_load_only_what_they_need(saved):
    talking = PlannedModel(BagelChat(saved), plan(BagelChat(saved).graphs()))
    assert {*talking.components_at(*talking.plans.workers)} == {"processor", "vision_encoder", "lm"}
    places = parse_placement({"place": {**dict.fromkeys(PARTS, "a"), "vision_encoder": "b", "vae": "c"}})
    apart = PlannedModel(Bagel(saved), plan(Bagel(saved).graphs(), places))
    assert {*apart.components_at("a")} == {"processor", "lm", "guidance"}
    assert [apart.components_at(worker) for worker in "bc"] == [("vision_encoder",), ("vae",)]


def test_branches_and_requests_share_forward_passes(model, ran):
    asks = [REQUESTS["changed"], REQUESTS["drawn"], REQUESTS["wide"]]
    with in_process("bagel", model) as deployment:
        run_clients(deployment, "bagel", asks[:1])
        flows = [len(one.results) for one in ran if one.name == "flow"]
        assert len(flows) == REQUESTS["changed"].steps
        assert max(flows) == 3
        ran.clear()
        run_clients(deployment, "bagel", asks)
    assert max(len(one.results) for one in ran if one.name == "flow") > 3


# ---------------------------------------------------------------- serving
def run_requests(deployment, name, requests, leavers=0):
    """Return text and images of concurrent clients, while others connect and disconnect."""
    clients = run_clients(deployment, name, requests, leavers)
    return [
        ([*map(int, emitted_values(one, "Text"))], [*map(np.asarray, emitted_values(one, "Image"))]) for one in clients
    ]


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("bagel", model) as deployment:
        for name, given in zip(
            REQUESTS, run_requests(deployment, "bagel", [*REQUESTS.values()], leavers=3), strict=True
        ):
            assert_right(*given, expected(name))


@pytest.mark.slow
@pytest.mark.parametrize("seed", ci_cases(range(4), 0))
def test_any_schedule_and_placement_gives_the_same(saved, expected, seed):
    own = Bagel(saved)
    placement = random_placement(own.graphs(), random.Random(seed))
    runtime = LocalRuntime(own, placement, max_batched_tokens=random.Random(seed).choice((None, 3)), seed=seed)
    for name, outcome in zip(REQUESTS, runtime.run_all([*REQUESTS.values()]), strict=True):
        assert_right(text_of(outcome), pictures_of(outcome), expected(name))


PARTS = ("processor", "vision_encoder", "vae", "lm", "guidance")
SPREAD = '{ workers = ["a", "b", "c"], spread = true }'
PLACES = {
    "one": dict.fromkeys(PARTS, '"a"'),
    "spread": {**dict.fromkeys(PARTS, '"a"'), "lm": SPREAD},
    "apart": {**dict.fromkeys(PARTS, '"a"'), "vision_encoder": '"b"', "vae": '"c"'},
    "replicas": {**dict.fromkeys(PARTS, '["b", "c"]'), "guidance": '"a"'},
}
"""One worker; guidance spread over three workers, with forked states; VAE and ViT on their own; replicas."""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_processes_give_the_same_under_any_placement(saved, expected):
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    with LocalLauncher(dict.fromkeys(PLACES, f"bagel@{saved}"), texts, standby=False) as deployment:
        for place in PLACES:
            for name, given in zip(
                REQUESTS, run_requests(deployment, place, [*REQUESTS.values()], leavers=4), strict=True
            ):
                assert_right(*given, expected(name))
        assert not deployment.recent_exits


# ---------------------------------------------------------------- KV cache
def test_a_preempted_cache_is_recomputed(model, monkeypatch):
    def prompt():
        kv = model.lm.make_state(KV)
        model.lm.hidden_states(model.processor.tokenize(SHORT), kv)
        model.lm.read_latents(*model.vae.encode(model.processor.vae_pixels(WIDE)[0], 0, 1), kv)
        model.lm.read_image(model.vision_encoder.encode(model.processor.vit_pixels(WIDE)), kv)
        model.lm.hidden_states(model.processor.tokenize(LONGER), kv)
        return kv

    x, kv, again = draw_noise((32, 16), 0, 0), prompt(), prompt()
    monkeypatch.setattr(model.lm.decoder.store, "swap_bytes", 0)
    again.evict()
    assert again.is_dropped
    model.lm.restore([again])
    for time in (1.0, 0.5):
        torch.testing.assert_close(model.lm.flow(x, time, 4, again), model.lm.flow(x, time, 4, kv), **CLOSE)


def test_drawing_does_not_change_the_cache(model):
    kv = model.lm.make_state(KV)
    model.lm.hidden_states(model.processor.tokenize(LONGER), kv)
    pool, before = model.lm.decoder.store.pool, kv.export()
    free = pool.free_pages
    model.lm.flow(draw_noise((32, 16), 0, 0), 0.5, 4, kv)
    assert (pool.free_pages, kv.export().length) == (free, before.length)
    assert torch.equal(kv.export().data, before.data)
    pool.check()


# ---------------------------------------------------------------- files, sizes and errors
def test_images_are_resized_as_published():
    for given, drawn_size, seen_size in (
        ((1024, 1024), (1024, 1024), (980, 980)),
        ((1000, 500), (1024, 512), (980, 490)),
        ((4000, 3000), (1024, 768), (980, 728)),
        ((100, 100), (512, 512), (518, 518)),
        ((5000, 500), (1024, 96), (980, 98)),
    ):
        assert processor.fit_size(given, 16, 64, processor.VAE_MIN_SIDE_RATIO) == drawn_size
        assert processor.fit_size(drawn_size, 14, 70, processor.VIT_MIN_SIDE_RATIO) == seen_size


@pytest.mark.nightly
def test_bfloat16_weights_are_supported(saved, golden, tmp_path):
    tiny.save(tmp_path)
    mixture = load_file(tmp_path / "ema.safetensors")
    save_file({name: one.bfloat16() for name, one in mixture.items()}, tmp_path / "ema.safetensors")
    request = replace(REQUESTS["changed"], steps=3)
    (rough,), (fine,) = (pictures_of(Bagel(where).run(request)) for where in (str(tmp_path), saved))
    assert 0 < np.abs(rough.astype(int) - fine).mean() < 20
    turns = (Message("user", (picture_of(golden), SHORT)),)
    assert len(text_of(Bagel(str(tmp_path)).run(ChatRequest(turns, Sampling(max_tokens=3))))) == 3


def test_it_is_traced_without_its_libraries():
    code = """
import sys
from mstar.models.bagel.bagel import Bagel
assert Bagel().graphs()
print([name for name in ("torch", "transformers", "diffusers", "numpy", "PIL", "tokenizers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unsupported_requests_are_rejected(model):
    for request, what in (
        (ImageRequest(SHORT, negative_prompt="rain"), "supports neither a mask nor a negative prompt\n  fix: "),
        (ImageRequest(SHORT, mask=SQUARE, sources=(SQUARE,)), "supports neither a mask nor a negative prompt\n  fix: "),
        (ImageRequest(SHORT, 60, 64), "cannot generate images of 60 x 64 pixels\n  fix: .* multiples of 8, up to 128"),
        (ImageRequest(SHORT, 64, 136), "cannot generate images of 64 x 136 pixels\n  fix: "),
    ):
        with pytest.raises(NotImplementedError, match=what):
            model.run(request)


def test_mismatched_checkpoints_are_rejected(saved, tmp_path):
    tiny.save(tmp_path)
    config = tmp_path / "llm_config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 3'))
    with pytest.raises(LoadError, match=r"missing or unexpected tensors for 3 layers: .*layers.3.*\n  fix: "):
        Bagel(str(tmp_path)).lm.prepare()
    mixture = load_file(tmp_path / "ema.safetensors")
    save_file({name: one for name, one in mixture.items() if "vae2llm" not in name}, tmp_path / "ema.safetensors")
    with pytest.raises(LoadError, match=r"lacks the tensor 'vae2llm.weight'\n  fix: "):
        Bagel(str(tmp_path)).lm.prepare()
    (tmp_path / "ae.safetensors").unlink()
    with pytest.raises(LoadError, match=r"ae.safetensors is missing\n  fix: "):
        Bagel(str(tmp_path)).vae.prepare()
    assert Checkpoint(saved).sizes == Sizes(patch=8, patches=8, cell=8, cells=16, block=2, channels=4)
