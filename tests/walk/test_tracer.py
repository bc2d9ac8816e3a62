"""Walks that are right: how they are written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import KV, Audio, Int64, Latents, Model, Stream, Tensor, Text, choose, each, loop, walk, windows
from mstar.graph.check import check
from mstar.graph.text import render
from tests.walk.toy_components import LM, Codec, Past


@dataclass
class Sampling:
    limit: int
    prompt: Int64[Tensor, "T"]


class Right(Model):
    def __init__(self) -> None:
        self.lm, self.codec = LM(), Codec()

    @walk
    def constants(self, kv: KV) -> Iterator[Text]:
        s = loop(steps=3, flag=True, count=0, share=0.5, name="x")
        for step in s:
            s.count = step
            s.stop_when(s.flag)
        yield Text(s.count)

    @walk
    def fields(self, sampling: Sampling, kv: KV) -> Int64[Tensor, "1"]:
        s = loop(steps=sampling.limit, token=self.lm.prefill(sampling.prompt, kv))
        for _ in s:
            s.token = self.lm.decode(s.token, kv, mode="slow")
        return s.token

    @walk
    def pair(self, token: Int64[Tensor, "1"], kv: KV) -> tuple[object, object]:
        return self.lm.think(token, kv)

    @walk
    def nothing(self, prompt: Int64[Tensor, "T"], kv: KV) -> None:
        self.lm.remember(prompt, kv)

    @walk
    def chosen(self, token: Int64[Tensor, "1"], kv: KV) -> Iterator[Text | Latents]:
        end = self.lm.is_end(token)
        same, hidden = choose(end, lambda: self.lm.think(token, kv), lambda: self.lm.think(token, kv))
        yield Text(choose(end, same, lambda: self.lm.decode(same, kv)))
        yield Latents(hidden)
        choose(end, lambda: None, lambda: self.keep(kv))

    def keep(self, kv: KV) -> None:
        self.lm.score(kv)

    @walk
    def indexed(self, table: Int64[Tensor, "N 1"], words: list[Int64[Tensor, "T"]], kv: KV) -> Iterator[Text]:
        for step in loop(steps=3):
            yield Text(self.lm.decode(table[step], kv))
        yield Text(self.lm.prefill(words[0], kv))

    @walk
    def sounds(self, codes: Int64[Tensor, "N 1"]) -> Iterator[Audio]:
        past = self.codec.state(Past)
        stream = Stream("codes")
        e = each(codes)
        for _ in e:
            own = past.fork()
            e.collect(at=e.index, sound=self.codec.sound(codes, own))
        for step in loop(steps=4):
            stream.put(codes[step])
        w = windows(stream, size=2, context=1)
        for window in w:
            yield Audio(self.codec.sound(window, past), rate=16_000)
        for _ in loop(steps=w.size):
            self.lm.is_end(stream.get(default=codes[0]))


GRAPHS = Right().graphs()


def body(name):
    return render(GRAPHS[name]).splitlines()


def test_they_are_well_formed():
    assert [problem for graph in GRAPHS.values() for problem in check(graph)] == []


def test_constants_have_types():
    lines = body("constants")
    assert lines[1:5] == [
        "  %const: bool = True", "  %const.2: int = 0", "  %const.3: float = 0.5", "  %const.4: str = 'x'",
    ]  # fmt: skip
    assert "    next %flag = %flag, %count = %step, %share = %share, %name = %name" in lines


def test_fields_are_read_where_they_are_used():
    lines = body("fields")
    assert lines[0] == "walk fields(%sampling: Sampling, %kv: state KV)"
    assert "  %limit: int = %sampling.limit" in lines
    assert "  %prefill: int64[1] = lm.prefill(tokens=%prompt, kv=!%kv)" in lines
    assert "    %decode: int64[1] = lm.decode[mode='slow'](token=%token, kv=!%kv)" in lines
    assert lines[-1] == "  return %token.2"


def test_results_may_be_a_tuple_one_value_or_nothing():
    assert body("pair")[-1] == "  return %think, %think.2,"
    assert (GRAPHS["pair"].is_tuple, GRAPHS["fields"].is_tuple) == (True, False)
    assert body("nothing")[-1] == "  lm.remember(tokens=%prompt, kv=!%kv)"
    assert GRAPHS["nothing"].outputs == ()


def test_choices_give_tuples_values_or_nothing():
    lines = body("chosen")
    assert "  %think.5: int64[1], %think.6: float32[64] = choose %is_end" in lines
    assert "  %think.7: int64[1] = choose %is_end" in lines
    assert "  choose %is_end" in lines
    assert "    give %think.5" in "\n".join(lines)


def test_elements_of_tensors_and_lists():
    lines = body("indexed")
    assert "    %table.2: int64[1] = %table[%step]" in lines
    assert "  %words.2: int64[T] = %words[%const]" in lines


def test_dimensions_that_only_a_result_has_are_its_own():
    lines = body("sounds")
    assert "    %sound: float32[S#1] = codec.sound(codes=%codes, past=!%past.2)" in lines
    assert "    %sound.3: float32[S#2] = codec.sound(codes=%window, past=!%past)" in lines
    assert "  windows %window: int64[W#1, 1] fresh %fresh of ~codes.2 size=3 stride=2 first=2" in lines
    assert "  all %at: list[int] of %index, %sound.2: list[float32[S#1]] of %sound" in lines


def test_tracing_twice_gives_the_same():
    assert Right().graphs() == GRAPHS
