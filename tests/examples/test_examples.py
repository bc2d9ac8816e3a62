"""Examples: each traces without problems, has the expected graph and picture, runs, and is short."""

import ast
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from mstar import Model
from mstar.draw import to_picture, to_svg
from mstar.graph.text import render
from mstar.testing.parity import parity_all

EXAMPLES = Path(__file__).parents[2] / "examples"
GOLDEN = Path(__file__).parent / "golden"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def load(name):
    full = f"mstar_example_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, EXAMPLES / f"{name}.py")
        sys.modules[full] = importlib.util.module_from_spec(spec)  # dataclasses look up their module
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


def model_of(module):
    (model_class,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Model) and value.__module__ == module.__name__
    ]
    return model_class()


def code_lines(source):
    """Return the lines of a source that are neither blank nor part of a docstring."""
    docs = set()
    for node in ast.walk(ast.parse(source)):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node) is not None:
            docs.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return [line for at, line in enumerate(source.splitlines(), 1) if line.strip() and at not in docs]


def model_source(name):
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    (node,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and [ast.unparse(parent) for parent in node.bases] == ["Model"]
    ]
    return ast.get_source_segment(text, node)


def describe(emission):
    """Return everything of an emission that can be compared."""
    value = emission.value
    if isinstance(value, np.ndarray | np.generic):
        value = (value.dtype.str, value.shape, value.tobytes())
    return type(emission).__name__, emission.clock, value


@pytest.mark.parametrize("name", NAMES)
def test_graphs_match_golden_files(name, golden):
    for walk, graph in model_of(load(name)).graphs().items():
        golden(GOLDEN / f"{name}.{walk}.txt", render(graph))


def test_no_golden_file_is_left_over():
    walks = {f"{name}.{walk}.txt" for name in NAMES for walk in type(model_of(load(name))).walks()}
    assert {path.name for path in GOLDEN.iterdir()} <= walks


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_deterministic(name):
    module = load(name)
    runs = [[model_of(module).run(request).emissions for request in module.requests()] for _ in range(2)]
    first, second = ([list(map(describe, emissions)) for emissions in run] for run in runs)
    assert len(first) >= 2
    assert all(first)
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_requests_give_different_results(name):
    module = load(name)
    outcomes = [[*map(describe, model_of(module).run(request).emissions)] for request in module.requests()]
    assert all(one != other for at, one in enumerate(outcomes) for other in outcomes[:at])


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_at_most_40_lines(name):
    assert len(code_lines(model_source(name))) <= 40


def test_the_smallest_model_file_has_at_most_15_lines():
    assert len(code_lines((EXAMPLES / "noop.py").read_text("utf-8"))) <= 15


@pytest.mark.parametrize("name", NAMES)
def test_requests_leave_the_model_as_it_was(name):
    """An earlier request on the same model does not change the next."""
    module = load(name)
    model = model_of(module)
    shared = [[*map(describe, model.run(request).emissions)] for request in module.requests()]
    fresh = [[*map(describe, model_of(module).run(request).emissions)] for request in module.requests()]
    assert shared == fresh


@pytest.mark.parametrize("name", NAMES)
def test_the_pictures_in_the_docs_are_current(name, golden):
    for walk, graph in model_of(load(name)).graphs().items():
        golden(PICTURES / f"{name}.{walk}.svg", to_svg(to_picture(graph)))


def test_a_dialogue_gives_the_eager_result_under_any_schedule():
    module = load("dialogue")
    inputs = module.client_inputs()
    outcome = model_of(module).run(module.requests()[0], inputs)
    assert (outcome.answers, outcome.result) == (["cut", "done", "done"], 3)
    assert len(outcome.emissions) == 9 + 40 + 40
    parity_all(model_of(module), module.requests(), inputs=inputs, schedules=8)
