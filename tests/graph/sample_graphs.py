"""A walk with every kind of node, built by hand, and a way to alter one node of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

from mstar.graph import ir
from mstar.graph.types import INT, ListType, ObjectType, StateType, TensorType

TOKEN = TensorType("int64", (1,))
TOKENS = TensorType("int64", ("T",))
SOUND = TensorType("float32", ("S",))
FLAG = TensorType("bool")
FLOAT = ObjectType("float")
KV = StateType("KV")


def val(name, type_=TOKEN):
    return ir.Value(name, type_)


def call(name, outs=(), *, extends=(), static=(), site="", **args):
    component, _, op = name.partition(".")
    return ir.Call(component, op, tuple(args.items()), tuple(outs), tuple(extends), static, site)


def repeat(name, *body, steps=3, site=""):
    """A loop that only repeats."""
    return ir.Loop(steps, val(name, INT), (), (), (), body, site)


def walk(*body, inputs=(), outputs=()):
    return ir.Walk("w", tuple(inputs), body, tuple(outputs))


PROMPT, ITEMS, SAMPLING = val("prompt", TOKENS), val("items", ListType(TOKEN)), val("sampling", ObjectType("Sampling"))
STATE, FORKED = val("kv", KV), val("kv.2", KV)
FIRST, LAST, NEXT = val("prefill"), val("token.2"), val("decode")
MAX, AT = val("max_tokens", INT), val("const", INT)


def write_loop():
    token, end = val("token"), val("is_end", FLAG)
    body = (
        ir.Put("codes", token, "f.py:8"),
        ir.Put("notes", token, "f.py:9"),
        call("lm.decode", [NEXT], token=token, kv=STATE, extends=[STATE], site="f.py:10"),
        call("lm.is_end", [end], token=NEXT, site="f.py:11"),
    )
    carry = (ir.Carry("token", FIRST, token, NEXT, LAST),)
    collect = (ir.Collect("text", NEXT, val("text", ListType(TOKEN))),)
    return ir.Loop(MAX, val("step", INT), carry, collect, (end,), body, "f.py:7")


def choose_node():
    answer, flag, other = val("answer"), val("is_end.2", FLAG), val("decode.2")
    then = ir.Arm((call("lm.decode", [other], token=LAST, kv=FORKED, extends=[FORKED]),), (other,))
    choice = ir.Choose(flag, then, ir.Arm((), (LAST,)), (answer,), "f.py:20")
    return call("lm.is_end", [flag], token=LAST), choice, ir.Emit("Text", answer)


def valid_walk():
    """A walk in which every rule is kept."""
    item, window, score, got = val("item"), val("window", TensorType("int64", (4, 1))), val("score", FLOAT), val("got")
    sound = val("sound", SOUND)
    body = (
        ir.New("lm", STATE, "f.py:1"),
        ir.Fork(STATE, FORKED, "f.py:2"),
        ir.Const(0, AT, "f.py:3"),
        ir.Take(PROMPT, AT, val("prompt.2", TensorType("int64")), "f.py:4"),
        ir.Field(SAMPLING, "max_tokens", MAX, "f.py:5"),
        call("lm.prefill", [FIRST], tokens=PROMPT, kv=STATE, top=1, extends=[STATE], static=(("mode", "fast"),)),
        ir.Open("codes", TOKEN, "f.py:6"),
        ir.Open("notes", TOKEN, "f.py:6"),
        write_loop(),
        ir.Windows(
            "codes", window, val("fresh", INT), 4, 2, 4, False,
            (call("codec.decode", [sound], codes=window), ir.Emit("Audio", sound, (("rate", 24000),))), "f.py:12",
        ),
        repeat("step.2", ir.Get("notes", FIRST, got, "f.py:14"), ir.Emit("Latents", got), site="f.py:13"),
        ir.Each(
            ITEMS, item, val("index", INT), (ir.Collect("score", score, val("scores", ListType(FLOAT))),),
            (call("lm.score", [score], token=item, kv=FORKED),), "f.py:16",
        ),
        *choose_node(),
    )  # fmt: skip
    return ir.Walk("speak", (PROMPT, ITEMS, SAMPLING), body, (LAST,), site="f.py:0")


def walk_with_change(kind, change, graph=None, nth=0):
    """The good walk, with its nth node of a kind changed: by new fields, or into other nodes."""
    graph = graph or valid_walk()
    number = itertools.count()

    def visit(body):
        for node in body:
            inside = _inner(node, visit)
            is_it = isinstance(node, kind) and next(number) == nth
            yield from _changed(inside, change) if is_it else (inside,)

    return replace(graph, body=tuple(visit(graph.body)))


def _inner(node, visit):
    if isinstance(node, ir.Choose):
        arms = {name: getattr(node, name) for name in ("then", "otherwise")}
        return replace(node, **{name: replace(arm, body=tuple(visit(arm.body))) for name, arm in arms.items()})
    return replace(node, body=tuple(visit(node.body))) if ir.bodies(node) else node


def _changed(node, change):
    changed = change(node) if callable(change) else change
    if isinstance(changed, dict):
        return (replace(node, **changed),)
    return changed
