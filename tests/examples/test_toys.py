"""Toy components: a batch equals its single calls, and every input changes the result."""

import copy
import inspect

import numpy as np
import pytest

from mstar.graph.types import ListType, StateType, TensorType
from mstar.testing import toy_language, toy_speech, toy_worlds
from mstar.testing.toy_language import Sampling, ToyComponent, ToyKV, digest
from mstar.walk.batching import alone

TOYS = sorted(
    {
        cls
        for module in (toy_language, toy_speech, toy_worlds)
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, ToyComponent) and cls.ops()
    },
    key=lambda cls: cls.__name__,
)
OPS = [pytest.param(cls, name, id=f"{cls.__name__}.{name}") for cls in TOYS for name in cls.ops()]
PREDICATES = {"is_end", "is_stop"}


def value_of(type_, rng, sizes, component, hint):
    match type_:
        case TensorType():
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in type_.dims)
            return rng.integers(1, 9, shape).astype(type_.dtype)
        case ListType():
            return [value_of(type_.item, rng, sizes, component, hint) for _ in range(sizes["list"])]
        case StateType():
            state = component.make_state(hint.python)
            for name in {"entries", "tokens", "tail"} & vars(state).keys():
                getattr(state, name).extend(map(int, rng.integers(1, 99, 3)))
            return state
        case _:
            return Sampling(seed=int(rng.integers(1, 99))) if type_.name == "Sampling" else int(rng.integers(1, 4))


def make_call(component, op, rng, row=0):
    sizes = dict.fromkeys("CFGHMNPQSTUVW", 16) | {"K": 4, "list": 4}
    if op.batch is not alone and op.batch.dim:
        sizes[op.batch.dim] += row
    params = op.signature.params
    return {name: value_of(hint.type, rng, sizes, component, hint) for name, hint in params.items()}


def to_hashable(value):
    """Convert any value, state or result to something comparable with ==."""
    match value:
        case np.ndarray() | np.generic():
            return value.dtype.str, value.shape, value.tobytes()
        case tuple() | list():
            return [to_hashable(part) for part in value]
        case toy_language.State():
            return {name: to_hashable(part) for name, part in vars(value).items()}
        case _:
            return value


def effect(component, op, calls):
    calls = copy.deepcopy(calls)
    results = op.run(component, {name: [call[name] for call in calls] for name in calls[0]}, len(calls))
    after = [[to_hashable(value) for value in call.values() if isinstance(value, toy_language.State)] for call in calls]
    return [(to_hashable(result), states) for result, states in zip(results, after, strict=True)]


def changed(value):
    """Yield copies of a value with its smallest part changed."""
    match value:
        case np.ndarray():
            for at in (0, value.size // 2, value.size - 1):
                other = value.copy()
                other.flat[at] += 1
                yield other
        case list():
            yield value[:-1]
            yield value[::-1]
            yield [*value[:-1], next(iter(changed(value[-1])))]
        case toy_language.State():
            other = value.fork()
            for name in {"entries", "tokens", "tail"} & vars(other).keys():
                getattr(other, name)[-1] += 1
            yield other
        case Sampling():
            yield Sampling(seed=value.seed + 1)
            yield Sampling(seed=value.seed, temperature=0.5)
        case _:
            yield value + 1


@pytest.mark.parametrize(("cls", "name"), OPS)
def test_a_batch_equals_its_single_calls(cls, name):
    component, op = cls(), cls.ops()[name]
    calls = [make_call(component, op, np.random.default_rng(row), row) for row in range(3)]
    one_by_one = [effect(component, op, [call])[0] for call in calls]
    assert effect(component, op, calls) == one_by_one
    assert effect(component, op, calls[::-1]) == one_by_one[::-1]


@pytest.mark.parametrize(("cls", "name"), OPS)
def test_results_have_the_types_that_the_op_declares(cls, name):
    component, op = cls(), cls.ops()[name]
    call = make_call(component, op, np.random.default_rng(0))
    (results,) = op.run(component, {name: [value] for name, value in call.items()}, 1)
    for hint, result in zip(op.signature.outs, results, strict=True):
        for value in result if isinstance(hint.type, ListType) else [result]:
            type_ = hint.type.item if isinstance(hint.type, ListType) else hint.type
            assert value.dtype == type_.dtype
            assert len(value.shape) == len(type_.dims)
            assert all(size == dim for size, dim in zip(value.shape, type_.dims, strict=True) if isinstance(dim, int))


@pytest.mark.parametrize(("cls", "name"), [param for param in OPS if param.values[1] not in PREDICATES])
def test_every_input_changes_the_result(cls, name):
    component, op = cls(), cls.ops()[name]
    call = make_call(component, op, np.random.default_rng(0))
    before = effect(component, op, [call])
    lost = {
        ("Policy", "finish", "actions"),
        ("CrossEntropy", "refit", "candidates"),
        ("CrossEntropy", "refit", "scores"),
    }
    for key, value in call.items():
        if (cls.__name__, name, key) not in lost:  # these ops keep only part of the input
            for other in changed(value):
                assert effect(component, op, [call | {key: other}]) != before, f"{key} was {value}, then {other}"


def test_a_fork_diverges():
    kv = ToyKV()
    kv.entries.append(1)
    fork = kv.fork()
    fork.entries.append(2)
    assert kv.entries == [1]


def test_chunked_prefill_gives_the_same():
    lm, tokens = toy_language.CausalLM(), np.arange(9)
    whole, parts = lm.kv(), lm.kv()
    lm.prefill(tokens[:4], parts)
    assert lm.prefill(tokens[4:], parts) == lm.prefill(tokens, whole)


def test_a_digest_depends_on_order_shape_and_values():
    values = [[1, 2], [2, 1], [[1, 2]], [1, 2, 0], [0, 1, 2], [1.0, 2.0], np.float32([1, 2])]
    assert len({digest(value) for value in values}) == len(values)
    assert digest(1, 2) != digest(2, 1)
