"""The kernels compile to machine code of three generations of GPUs, and fit into their shared memory."""

import pytest

pytest.importorskip("triton")

from mstar.nn.triton import paged_attention, token_draws
from tests.tiers import ci_cases
from tools.build_cubins import SHARED_BYTES, VARIANTS, compile_draws, compile_variant


@pytest.fixture(autouse=True)
def new_cache(tmp_path, monkeypatch):
    """Nothing that was compiled before is used again."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def check_layer(variant, architecture):
    cubins = list(compile_variant(variant, architecture))
    assert len(cubins) == 2 + variant.is_split
    check(cubins, architecture)


def check(cubins, architecture):
    for cubin in cubins:
        assert len(cubin.code) > 1000
        assert cubin.architecture == architecture, cubin.name
        assert cubin.shared_bytes <= SHARED_BYTES[architecture], cubin.name


@pytest.mark.parametrize(
    ("kernel", "integers", "pointers"),
    [
        (paged_attention.write_pages, {"tokens"}, {"places"}),
        (paged_attention.attend, {"tokens", "table_width"}, {"page_table", "seen", "blocks"}),
        (paged_attention.merge_splits, {"rows", "splits"}, set()),
        (token_draws.draw, set(), {"keys", "top_ks", "temperatures", "top_ps", "min_ps"}),
    ],
    ids=["write_pages", "attend", "merge_splits", "draw"],
)
def test_a_step_of_another_size_compiles_nothing(kernel, integers, pointers):
    """Tensors that are parts of one copy to the device are not aligned, or only by chance."""
    assert {param.name for param in kernel.params if param.do_not_specialize} == integers
    assert {param.name for param in kernel.params if param.do_not_specialize_on_alignment} == pointers


def test_decode_compiles():
    check_layer(VARIANTS[0], 90)


def test_a_cache_in_fp8_compiles():
    (variant,) = [one for one in VARIANTS if one.name == "llama3_decode_fp8_cache"]
    assert not variant.runs_on(80)
    check_layer(variant, 90)


IN_CI = ("gemma2_prefill",)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ci_cases(SHARED_BYTES, 100))
@pytest.mark.parametrize("variant", [one for one in VARIANTS if one.name in IN_CI], ids=lambda variant: variant.name)
def test_a_variant_compiles(variant, architecture):
    check_layer(variant, architecture)


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", SHARED_BYTES)
@pytest.mark.parametrize("variant", [one for one in VARIANTS if one.name not in IN_CI], ids=lambda one: one.name)
def test_every_other_variant_compiles(variant, architecture):
    if not variant.runs_on(architecture):
        pytest.skip("the architecture has no fp8")
    check_layer(variant, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ci_cases(SHARED_BYTES, 80))
def test_draws_compile(architecture):
    check([compile_draws(architecture)], architecture)
