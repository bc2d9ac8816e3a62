"""Denoising networks as components give what the library's pipelines give, with each request at its own step."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import diffusers as d
import pytest
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from mstar import Float, Int64, Latents, Model, Tensor, loop, op, rows, stacked, walk
from mstar.errors import LoadError
from mstar.nn.diffusion.flow_head import DenoisingState, FlowHead
from mstar.nn.pretend_gpu import PretendTensor, pretend_gpu
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import parity_all
from mstar.transfer.values import pack, unpack

SD3 = {"sample_size": 8, "patch_size": 1, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8}
SD3 |= {"num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 16}
FLUX = {"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
FLUX |= {"joint_attention_dim": 32, "pooled_projection_dim": 16, "axes_dims_rope": [4, 4, 8], "guidance_embeds": True}
DIT = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "num_layers": 2}
DIT |= {"sample_size": 8, "norm_num_groups": 4}
STEPS = (2, 5, 3, 5, 1, 4)


def seeded(make):
    """A network whose weights are large enough for what it is given to matter."""
    torch.manual_seed(0)
    made = make().eval().requires_grad_(requires_grad=False)
    for weight in made.parameters():
        weight.data.normal_(0, 0.1)
    return made


def fixed(x):
    """Latents in whole numbers: batching may change the last bits of others."""
    return (x * 10_000).round().long()


def sd3():
    return seeded(lambda: d.SD3Transformer2DModel(**SD3, out_channels=4, pos_embed_max_size=16))


def flux():
    return seeded(lambda: d.FluxTransformer2DModel(**FLUX))


def dit():
    return seeded(lambda: d.DiTTransformer2DModel(**DIT))


# ---------------------------------------------------------------- SD3: two guidance branches
def sd3_schedule(steps):
    scheduler = d.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(steps)
    return scheduler


@dataclass
class Prompt:
    text: Float[Tensor, "L 32"]
    pooled: Float[Tensor, "16"]


class Sd3Head(FlowHead):
    @op(batch=stacked)
    def predict(
        self,
        x: Float[Tensor, "4 H W"],
        text: Float[Tensor, "L 32"],
        pooled: Float[Tensor, "16"],
        steps: int,
        step: int,
    ) -> Float[Tensor, "4 H W"]:
        return self.network(x, text, pooled, self.timesteps(steps, step)).sample

    @op(batch=stacked)
    def guide(
        self,
        x: Float[Tensor, "4 H W"],
        conditional: Float[Tensor, "4 H W"],
        unconditional: Float[Tensor, "4 H W"],
        scale: float,
        steps: int,
        step: int,
    ) -> Float[Tensor, "4 H W"]:
        factor = torch.tensor(rows(scale))[:, None, None, None]
        return self.advance(x, unconditional + factor * (conditional - unconditional), steps, step)

    @op
    def whole(self, x: Float[Tensor, "4 H W"]) -> Int64[Tensor, "4 H W"]:
        return fixed(x)


class Sd3(Model):
    def __init__(self, dtype=torch.float32):
        self.head = Sd3Head(lambda: sd3().to(dtype), sd3_schedule)

    @walk
    def paint(
        self,
        x: Float[Tensor, "4 H W"],
        wanted: Prompt,
        unwanted: Prompt,
        scale: float,
        steps: int,
    ) -> Iterator[Latents]:
        s = loop(steps=steps, x=x)
        for step in s:
            conditional, unconditional = (
                self.head.predict(s.x, p.text, p.pooled, steps, step) for p in (wanted, unwanted)
            )
            s.x = self.head.guide(s.x, conditional, unconditional, scale, steps, step)
        yield Latents(self.head.whole(s.x))


def sd3_requests(dtype=torch.float32):
    torch.manual_seed(1)
    return [
        {
            "x": torch.randn(4, 8, 8, dtype=dtype),
            "wanted": Prompt(torch.randn(5, 32, dtype=dtype), torch.randn(16, dtype=dtype)),
            "unwanted": Prompt(torch.randn(5, 32, dtype=dtype), torch.randn(16, dtype=dtype)),
            "scale": 2.0 + number,
            "steps": steps,
        }
        for number, steps in enumerate(STEPS)
    ]


def without(names):
    return dict.fromkeys(names)


def sd3_by_library(request):
    absent = without(
        ["vae", *(f"{what}{number}" for what in ("text_encoder", "tokenizer") for number in ("", "_2", "_3"))]
    )
    pipeline = d.StableDiffusion3Pipeline(
        transformer=sd3(), scheduler=d.FlowMatchEulerDiscreteScheduler(shift=3.0), **absent
    )
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        latents=request["x"][None],
        prompt_embeds=request["wanted"].text[None],
        pooled_prompt_embeds=request["wanted"].pooled[None],
        negative_prompt_embeds=request["unwanted"].text[None],
        negative_pooled_prompt_embeds=request["unwanted"].pooled[None],
        guidance_scale=request["scale"],
        num_inference_steps=request["steps"],
        height=64,
        width=64,
        output_type="latent",
    )
    return made.images[0]


# ---------------------------------------------------------------- Flux: a schedule that depends on the picture's size
@dataclass(frozen=True)
class FluxParams:
    steps: int
    tokens: int = 16


def flux_schedule(params):
    scheduler = d.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    sigmas = torch.linspace(1, 1 / params.steps, params.steps, dtype=torch.float64).numpy()
    scheduler.set_timesteps(sigmas=sigmas, mu=calculate_shift(params.tokens))
    return scheduler


class FluxHead(FlowHead):
    @op(batch=stacked)
    def denoise(
        self,
        x: Float[Tensor, "N 4"],
        text: Float[Tensor, "L 32"],
        pooled: Float[Tensor, "16"],
        guidance: float,
        params: FluxParams,
        step: int,
    ) -> Float[Tensor, "N 4"]:
        side = math.isqrt(x.shape[1])
        line = torch.arange(side, dtype=torch.float32)
        places = torch.stack(torch.meshgrid(torch.zeros(1), line, line, indexing="ij"), -1).reshape(-1, 3)
        velocity = self.network(
            x,
            encoder_hidden_states=text,
            pooled_projections=pooled,
            timestep=self.timesteps(params, step) / 1000,
            guidance=torch.tensor(rows(guidance)),
            txt_ids=torch.zeros(text.shape[1], 3),
            img_ids=places,
        ).sample
        return self.advance(x, velocity, params, step)

    @op
    def whole(self, x: Float[Tensor, "N 4"]) -> Int64[Tensor, "N 4"]:
        return fixed(x)


class Flux(Model):
    def __init__(self, dtype=torch.float32):
        self.head = FluxHead(lambda: flux().to(dtype), flux_schedule)

    @walk
    def paint(
        self,
        x: Float[Tensor, "N 4"],
        text: Float[Tensor, "L 32"],
        pooled: Float[Tensor, "16"],
        guidance: float,
        params: FluxParams,
    ) -> Iterator[Latents]:
        s = loop(steps=params.steps, x=x)
        for step in s:
            s.x = self.head.denoise(s.x, text, pooled, guidance, params, step)
        yield Latents(self.head.whole(s.x))


def flux_requests(dtype=torch.float32):
    torch.manual_seed(1)
    return [
        {
            "x": torch.randn(16, 4, dtype=dtype),
            "text": torch.randn(5, 32, dtype=dtype),
            "pooled": torch.randn(16, dtype=dtype),
            "guidance": 2.0 + number,
            "params": FluxParams(steps),
        }
        for number, steps in enumerate(STEPS)
    ]


def flux_by_library(request):
    scheduler = d.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    absent = without(["vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"])
    pipeline = d.FluxPipeline(transformer=flux(), scheduler=scheduler, **absent)
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        latents=request["x"][None],
        prompt_embeds=request["text"][None],
        pooled_prompt_embeds=request["pooled"][None],
        guidance_scale=request["guidance"],
        num_inference_steps=request["params"].steps,
        height=64,
        width=64,
        output_type="latent",
    )
    return made.images[0]


# ---------------------------------------------------------------- DiT: predicts noise, for DDIM
def ddim(steps):
    scheduler = d.DDIMScheduler()
    scheduler.set_timesteps(steps)
    return scheduler


class DitHead(FlowHead):
    @op(batch=stacked)
    def denoise(
        self, x: Float[Tensor, "4 H W"], label: Int64[Tensor, ""], steps: int, step: int
    ) -> Float[Tensor, "4 H W"]:
        return self.advance(x, self.network(x, self.timesteps(steps, step), label).sample, steps, step)

    @op
    def whole(self, x: Float[Tensor, "4 H W"]) -> Int64[Tensor, "4 H W"]:
        return fixed(x)


class Dit(Model):
    def __init__(self, dtype=torch.float32):
        self.head = DitHead(lambda: dit().to(dtype), ddim)

    @walk
    def paint(self, x: Float[Tensor, "4 H W"], label: Int64[Tensor, ""], steps: int) -> Iterator[Latents]:
        s = loop(steps=steps, x=x)
        for step in s:
            s.x = self.head.denoise(s.x, label, steps, step)
        yield Latents(self.head.whole(s.x))


def dit_requests(dtype=torch.float32):
    torch.manual_seed(1)
    return [
        {"x": torch.randn(4, 8, 8, dtype=dtype), "label": torch.tensor(number), "steps": steps}
        for number, steps in enumerate(STEPS)
    ]


def dit_by_library(request):
    network, scheduler, x = dit(), ddim(request["steps"]), request["x"][None]
    for time in scheduler.timesteps:
        x = scheduler.step(network(x, time[None], request["label"][None]).sample, time, x).prev_sample
    return x[0]


FAMILIES = {
    "sd3": (Sd3, sd3_requests, sd3_by_library),
    "flux": (Flux, flux_requests, flux_by_library),
    "dit": (Dit, dit_requests, dit_by_library),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_requests_at_different_steps_share_forwards_and_get_what_the_library_gives_each_alone(name):
    make, requests, by_library = FAMILIES[name]
    model, times = make(), []
    take = model.head.timesteps
    model.head.timesteps = lambda params, step: times.append(take(params, step)) or times[-1]
    outcomes = LocalRuntime(model, seed=3).run_all(requests())
    wanted = [by_library(request) for request in requests()]
    for outcome, want in zip(outcomes, wanted, strict=True):
        assert (outcome.emissions[0].value - fixed(want)).abs().max() <= 2
    assert max(len(row.unique()) for row in times) > 2, "a forward held rows at different times"
    assert all((a - b).abs().max() > 0.1 for a in wanted for b in wanted if a is not b), "what is given matters"


def test_both_guidance_branches_of_one_request_share_a_forward():
    request = sd3_requests()[1]
    runtime = LocalRuntime(Sd3(), seed=1)
    (emission,) = runtime.run(request).emissions
    assert (emission.value - fixed(sd3_by_library(request))).abs().max() <= 2
    assert ("head.predict", 2) in runtime.batches


@pytest.mark.parametrize("name", FAMILIES)
def test_a_walk_is_served_as_it_runs(name):
    make, requests, _ = FAMILIES[name]
    parity_all(make(torch.float64), requests(torch.float64), schedules=3)


REFUSED = {
    "UniPCMultistepScheduler": "a step of UniPCMultistepScheduler is random, or depends on earlier steps",
    "DPMSolverMultistepScheduler": "a step of DPMSolverMultistepScheduler is random, or depends",
    "DDPMScheduler": "a step of DDPMScheduler is random, or depends on earlier steps",
    "EulerDiscreteScheduler": "EulerDiscreteScheduler scales the input of its network",
}


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of diffusers, with a new numpy
@pytest.mark.parametrize("name", REFUSED)
def test_a_scheduler_whose_steps_cannot_stand_alone_is_refused(name):
    def scheduler(steps):
        made = getattr(d, name)()
        made.set_timesteps(steps)
        return made

    head = DitHead(dit, scheduler)
    with pytest.raises(LoadError, match=rf"{REFUSED[name]}[\s\S]*relative difference[\s\S]*fix: use one like"):
        head.denoise(torch.randn(4, 8, 8), torch.tensor(1), 6, 0)


# ---------------------------------------------------------------- schedulers that look back
class MultistepHead(FlowHead):
    @op(batch=stacked)
    def denoise(self, x: Float[Tensor, "4 H W"], steps: int, way: DenoisingState) -> Float[Tensor, "4 H W"]:
        return self.advance_multistep(x, x.sin(), rows(steps), rows(way))


def multistep_model(name):
    def scheduler(steps):
        made = getattr(d, name)(prediction_type="v_prediction")
        made.set_timesteps(steps)
        return made

    return MultistepHead(dit, scheduler), scheduler


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
@pytest.mark.parametrize("name", ["UniPCMultistepScheduler", "DPMSolverMultistepScheduler", "DDIMScheduler"])
def test_a_scheduler_that_looks_back_is_right_for_requests_at_different_steps(name):
    head, scheduler = multistep_model(name)
    torch.manual_seed(2)
    latents = {steps: torch.randn(4, 8, 8) for steps in (3, 6, 9)}
    ways, moved = {steps: head.make_state(DenoisingState) for steps in latents}, dict(latents)
    for turn in range(9):
        now = [
            steps for steps, way in ways.items() if way.steps_done < steps and (turn + steps) % 4
        ]  # not all, each time
        if turn == 4:
            for steps, way in ways.items():  # to another worker and back
                ways[steps] = head.load_state(DenoisingState, unpack(pack(way.export())))
        batch = {"x": [moved[steps] for steps in now], "steps": now, "way": [ways[steps] for steps in now]}
        for steps, (x,) in zip(now, head.ops()["denoise"].run(head, batch, len(now)), strict=True):
            moved[steps] = x
    for steps, begun in latents.items():
        alone, x = scheduler(steps), begun[None]
        for time in alone.timesteps[: ways[steps].steps_done]:
            x = alone.step(x.sin(), time, x, return_dict=False)[0]
        torch.testing.assert_close(moved[steps], x[0])
    assert [way.steps_done for way in ways.values()] == [3, 6, 7]


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
def test_a_step_that_failed_can_be_done_again():
    head, _ = multistep_model("UniPCMultistepScheduler")
    way, x = head.make_state(DenoisingState), torch.linspace(-1, 1, 256).reshape(4, 8, 8)
    x = head.denoise(x, 5, way)
    mark = way.snapshot()
    first = head.denoise(x, 5, way)
    way.rollback(mark)
    assert way.steps_done == 1
    torch.testing.assert_close(head.denoise(x, 5, way), first)


def test_a_scheduler_that_is_random_is_refused_also_where_one_may_look_back():
    head, _ = multistep_model("DDPMScheduler")
    with pytest.raises(
        LoadError, match=r"a step of DDPMScheduler is random: relative difference[\s\S]*fix: use one like"
    ):
        head.denoise(torch.randn(4, 8, 8), 6, head.make_state(DenoisingState))


def test_importing_it_loads_no_tensor_library():
    code = "import sys, mstar.nn.diffusion.flow_head; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- on a device
class LinearHead(FlowHead):
    runs_on_device = True

    @op(batch=stacked)
    def single(self, x: Float[Tensor, "N 4"], steps: int, step: int) -> Float[Tensor, "N 4"]:
        return self.advance(x, self._velocity(x, steps, step), steps, step)

    @op(batch=stacked)
    def multi(self, x: Float[Tensor, "N 4"], steps: int, state: DenoisingState) -> Float[Tensor, "N 4"]:
        states = rows(state)
        velocity = self._velocity(x, steps, [row.steps_done for row in states])
        return self.advance_multistep(x, velocity, rows(steps), states)

    def _velocity(self, x, steps, step):
        return self.network(x) * self.timesteps(steps, step)[:, None, None] / 1000


MULTISTEP = (d.UniPCMultistepScheduler, d.DPMSolverMultistepScheduler)


def linear_head(scheduler, device):
    def schedule(steps):
        made = scheduler()
        made.set_timesteps(steps)
        return made

    head = LinearHead(lambda: seeded(lambda: torch.nn.Linear(4, 4)), schedule)
    head.name, head.device = "head", device
    return head


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of diffusers, with a new numpy
@pytest.mark.parametrize(
    "scheduler",
    [d.FlowMatchEulerDiscreteScheduler, d.DDIMScheduler, *MULTISTEP],
    ids=lambda s: s.__name__,
)
def test_steps_on_a_device_are_those_of_the_cpu(scheduler):
    results = {}
    is_multistep = scheduler in MULTISTEP
    for device in (None, pretend_gpu()):
        head, steps = linear_head(scheduler, device), [5, 9]
        latents = [torch.linspace(-1, 1, 12).view(3, 4) * row for row in (1, 2)]
        states = [DenoisingState() for _ in latents]
        for step in range(5):
            columns = {"x": latents, "steps": steps} | ({"state": states} if is_multistep else {"step": [step] * 2})
            with torch.inference_mode():
                made = head.ops()["multi" if is_multistep else "single"].run(head, columns, 2)
            latents = [row for (row,) in made]
            states = [head.load_state(DenoisingState, unpack(pack(state.export()))) for state in states]
        assert all(isinstance(row, PretendTensor) == (device is not None) for row in latents)
        results[device] = torch.stack(latents).cpu()
    torch.testing.assert_close(results[pretend_gpu()], results[None], rtol=0, atol=1e-6)
