"""vLLM as the engine of a language model: tokens are those of transformers, whatever the schedule."""

import json
import subprocess

import pytest

from mstar.errors import LoadError
from mstar.nn.lm.causal_lm import CausalLM
from tests.vllm_interpreter import REPOSITORY, vllm_python


def in_vllm(test):
    """A test that starts vLLM."""
    return pytest.mark.slow(pytest.mark.timeout(420)(test))


@pytest.fixture(scope="module")
def report():
    """What `vllm_requests` compared, in the interpreter that has vLLM."""
    command = [vllm_python(), "-m", "tests.nn.lm.vllm.vllm_requests"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-6000:]
    return json.loads(run.stdout.splitlines()[-1])


@in_vllm
def test_greedy_and_seeded_tokens_are_those_of_generate_under_random_schedules(report):
    assert report["random schedule"] == 8 * 12


@in_vllm
def test_forks_and_evictions_change_no_token(report):
    assert report["forks and evictions"] == 8 * 12


@in_vllm
def test_requests_that_need_more_pages_than_there_are_take_turns(report):
    assert report["pages"] == 24
    assert report["more requests than pages"] == 20 * 12


@in_vllm
def test_an_exported_cache_continues(report):
    assert report["exported"]


@in_vllm
def test_what_vllm_cannot_do_is_refused(report):
    assert report["too long"] == "NeverFits"
    assert report["hidden states"] == "Unsupported"


@in_vllm
def test_only_requests_of_one_tenant_share_a_prefix(report):
    assert report["new pages of an equal prompt"] == [3, 3, 1]


@in_vllm
def test_sessions_end_with_their_requests(report):
    assert report["pages used at the end"] <= 1


def component(**settings):
    lm = CausalLM(lambda: None, eos_token_id=2)
    lm.name, lm.operator_settings = "lm", {"engine": "vllm", **settings}
    return lm


def test_an_interpreter_without_vllm_is_refused():
    with pytest.raises(LoadError, match=r"needs vLLM in the interpreter of its worker(.|\n)*fix: set `python`"):
        component().prepare()


def test_settings_that_do_not_apply_to_vllm_are_refused():
    with pytest.raises(LoadError, match=r"`quantization` does not apply(.|\n)*`vllm_args`"):
        component(quantization="int8").prepare()
