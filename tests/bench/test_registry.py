"""Every bench exists, says what limits it without figures of its own, and justifies its series and its workload."""

import ast
import re
from pathlib import Path

import pytest

from bench.publication import publish_all
from bench.registry import BENCHES
from bench.repository import ROOT, Repository

MODEL_BENCHES = (
    "engine",
    "engine_comparison",
    "int8",
    "runtime",
    "cluster/overhead",
    "http/overhead",
    "multimodal/bagel",
    "multimodal/diffusion",
    "multimodal/pi05",
    "multimodal/smolvlm",
    "multimodal/vjepa2_ac",
    "speech/lite_asr",
    "speech/longform",
    "speech/longform_chunks",
    "speech/orpheus",
    "speech/qwen3_omni",
)
"""Modules that measure the speed of a model. A small or random network stands for a published one."""


@pytest.mark.parametrize("bench", BENCHES.values(), ids=BENCHES)
def test_every_bench_is_there(bench):
    module, _, function = bench.function.partition(":")
    source = ROOT / (module.replace(".", "/") + ".py")
    assert function in {one.name for one in ast.parse(source.read_text()).body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize(("name", "bench"), BENCHES.items(), ids=BENCHES)
def test_a_new_series_has_a_decision_note_about_the_bench(name, bench):
    assert bench.series >= 1
    if bench.series > 1:
        assert bench.decision, "fix: name the note that shows the old and the new figures side by side"
    if bench.decision:
        path = Path("docs/decisions") / bench.decision
        assert (ROOT / path).is_file()
        assert f"`{name}`" in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("bench", BENCHES.values(), ids=BENCHES)
def test_a_reason_has_no_figures(bench):
    # A size such as 16 KB describes the workload, and pi0.5 is a name.
    assert not re.search(r"\d ?(?:%|x|ms|µs|s)(?!\w)|(?<!\w)\d+\.\d", bench.why_missed)


@pytest.mark.skipif(not Repository().has_history(), reason="needs the git history: a clone that is not shallow")
def test_every_missed_target_has_a_reason():
    missed = {name for name, one in publish_all(BENCHES).items() if one.verdict == "missed"}
    assert {name for name in missed if not BENCHES[name].why_missed} == set()


@pytest.mark.parametrize("module", MODEL_BENCHES)
def test_a_model_bench_justifies_its_sizes(module):
    text = ast.get_docstring(ast.parse((ROOT / "bench" / f"{module}.py").read_text("utf-8"))) or ""
    assert re.search(r"^Workload: \S", text, re.MULTILINE), "fix: name the published model that the sizes stand for"
