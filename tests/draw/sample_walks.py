"""Sample walks of every shape for the diagram tests. Ops have no bodies: nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import (
    KV,
    Action,
    Audio,
    Bool,
    Component,
    Float32,
    Image,
    Int64,
    Latents,
    Model,
    Stream,
    Tensor,
    Text,
    View,
    choose,
    each,
    loop,
    op,
    walk,
    windows,
)


class LM(Component):
    @op
    def prefill(self, tokens: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]: ...
    @op
    def decode(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]: ...
    @op
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]: ...


class Snac(Component):
    @op
    def pack(self, codes: Int64[Tensor, "28 1"]) -> Int64[Tensor, "1"]: ...
    @op
    def join(self, parts: list[Int64[Tensor, "1"]], counts: list[int]) -> Int64[Tensor, "T"]: ...
    @op
    def decode(self, codes: Int64[Tensor, "28 1"]) -> Float32[Tensor, "S"]: ...


@dataclass
class Sampling:
    max_tokens: int = 60


class Orpheus(Model):
    def __init__(self):
        self.lm = LM()
        self.snac = Snac()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Audio]:
        kv = self.lm.kv()
        codes = Stream("codes")
        s = loop(steps=sampling.max_tokens, token=self.lm.prefill(prompt, kv))
        for _ in s:
            codes.put(s.token)
            s.token = self.lm.decode(s.token, kv)
            s.stop_when(self.lm.is_end(s.token))
        for window in windows(codes, size=28, stride=7):
            yield Audio(self.snac.decode(window), rate=24_000)


class Omni(Model):
    def __init__(self):
        self.thinker = LM()
        self.talker = LM()
        self.vocoder = Snac()

    @walk
    def talk(self, prompt: Int64[Tensor, "T"], pad: Int64[Tensor, "1"]) -> Iterator[Text | Audio]:
        kv, thoughts, codes = self.thinker.kv(), Stream("thoughts"), Stream("codes")
        think = loop(steps=40, token=self.thinker.prefill(prompt, kv))
        for _ in think:
            yield Text(think.token)
            thoughts.put(think.token)
            think.token = self.thinker.decode(think.token, kv)
            think.stop_when(self.thinker.is_end(think.token))
        own = self.talker.kv()
        speak = loop(steps=90, code=self.talker.prefill(prompt, own))
        for _ in speak:
            self.talker.decode(thoughts.get(default=pad), own)
            speak.code = self.talker.decode(speak.code, own)
            codes.put(speak.code)
            speak.stop_when(self.talker.is_end(speak.code))
        for window in windows(codes, size=28, stride=7):
            yield Audio(self.vocoder.decode(window), rate=24_000)


class Vae(Component):
    @op
    def decode(self, x: Float32[Tensor, "N 64"]) -> Float32[Tensor, "3 H W"]: ...


class Mot(Component):
    @op
    def flow(self, x: Float32[Tensor, "N 64"], step: int, kv: View[KV]) -> Float32[Tensor, "N 64"]: ...


class Guide(Component):
    @op
    def noise(self, size: int) -> Float32[Tensor, "N 64"]: ...
    @op
    def euler(
        self,
        x: Float32[Tensor, "N 64"],
        v: Float32[Tensor, "N 64"],
        vt: Float32[Tensor, "N 64"],
        vi: Float32[Tensor, "N 64"],
        step: int,
        scale: float,
    ) -> Float32[Tensor, "N 64"]: ...


class Bagel(Model):
    def __init__(self):
        self.lm = Mot()
        self.guide = Guide()
        self.vae = Vae()

    @walk
    def draw(self, size: int, kv: KV, no_text: KV, no_image: KV) -> Iterator[Image]:
        s = loop(steps=49, x=self.guide.noise(size))
        for step in s:
            v, vt, vi = (self.lm.flow(s.x, step, c) for c in (kv, no_text, no_image))
            s.x = self.guide.euler(s.x, v, vt, vi, step, 4.0)
        yield Image(self.vae.decode(s.x))


class Enc(Component):
    @op
    def encode(self, frames: Float32[Tensor, "F 3 H W"]) -> Float32[Tensor, "256 64"]: ...


class Pred(Component):
    @op
    def advance(
        self, z: Float32[Tensor, "256 64"], action: Float32[Tensor, "7"], pose: Float32[Tensor, "7"], kv: KV
    ) -> tuple[Float32[Tensor, "256 64"], Float32[Tensor, "7"]]: ...
    @op
    def distance(self, z: Float32[Tensor, "256 64"], goal: Float32[Tensor, "256 64"]) -> Float32[Tensor, ""]: ...


class Cem(Component):
    @op
    def sample(self, mean: Float32[Tensor, "12 7"], std: Float32[Tensor, "12 7"]) -> Float32[Tensor, "400 12 7"]: ...
    @op
    def refit(
        self, plans: Float32[Tensor, "400 12 7"], costs: list[Float32[Tensor, ""]]
    ) -> tuple[Float32[Tensor, "12 7"], Float32[Tensor, "12 7"]]: ...


class VJepa(Model):
    def __init__(self):
        self.encoder = Enc()
        self.predictor = Pred()
        self.cem = Cem()

    @walk
    def rollout(
        self,
        frames: Float32[Tensor, "F 3 H W"],
        actions: Float32[Tensor, "12 7"],
        pose: Float32[Tensor, "7"],
        horizon: int,
    ) -> Iterator[Latents]:
        kv = self.predictor.kv()
        s = loop(steps=horizon, z=self.encoder.encode(frames), pose=pose)
        for step in s:
            s.z, s.pose = self.predictor.advance(s.z, actions[step], s.pose, kv)
            yield Latents(s.z)

    @walk
    def plan(
        self,
        frames: Float32[Tensor, "F 3 H W"],
        goal: Float32[Tensor, "256 64"],
        pose: Float32[Tensor, "7"],
        mean: Float32[Tensor, "12 7"],
        std: Float32[Tensor, "12 7"],
    ) -> Iterator[Action]:
        z = self.encoder.encode(frames)
        search = loop(steps=6, mean=mean, std=std)
        for _ in search:
            plans = self.cem.sample(search.mean, search.std)
            e = each(plans)
            for plan in e:
                kv = self.predictor.kv()
                r = loop(steps=12, z=z, pose=pose)
                for step in r:
                    r.z, r.pose = self.predictor.advance(r.z, plan[step], r.pose, kv)
                e.collect(cost=self.predictor.distance(r.z, goal))
            search.mean, search.std = self.cem.refit(plans, e.cost)
        yield Action(search.mean, rate=4)


class Odd(Component):
    @op
    def score(self, x: Float32[Tensor, "N"]) -> Bool[Tensor, ""]: ...
    @op
    def grow(self, x: Float32[Tensor, "N"], kv: KV) -> Float32[Tensor, "N"]: ...
    @op
    def trim(self, x: Float32[Tensor, "N"]) -> Float32[Tensor, "N"]: ...


class Branch(Model):
    def __init__(self):
        self.odd = Odd()
        self.other = Odd()

    @walk
    def pick(self, x: Float32[Tensor, "N"], skip: bool) -> Iterator[Latents]:
        kv = self.odd.kv()
        y = choose(self.odd.score(x), lambda: self.odd.grow(self.other.trim(x), kv), lambda: x)
        twin = kv.fork()
        z = choose(skip, x, y)
        z = self.odd.grow(z, kv)
        yield Latents(self.odd.grow(z, twin))


class Duet(Model):
    """Pipes of all kinds: past a loop, from a box, with two readers, inside an each."""

    def __init__(self):
        self.left, self.right, self.snac = LM(), LM(), Snac()

    @walk
    def converse(self, prompt: Int64[Tensor, "T"], pad: Int64[Tensor, "1"]) -> Iterator[Text | Audio]:
        kv, other = self.left.kv(), self.right.kv()
        questions, sound = Stream("questions"), Stream("sound")
        first = self.left.prefill(prompt, kv)
        questions.put(first)
        ask = loop(steps=8, token=first)
        for _ in ask:
            ask.token = self.left.decode(ask.token, kv)
            questions.put(ask.token)
            sound.put(ask.token)
        answer = loop(steps=8, token=pad)
        for _ in answer:
            question = self.right.decode(questions.get(default=pad), other)
            answer.token = self.right.decode(question, other)
            yield Text(answer.token)
        for window in windows(sound, size=28, stride=28):
            yield Audio(self.snac.decode(window), rate=24_000)

    @walk
    def chapters(self, prompts: Int64[Tensor, "N T"]) -> Iterator[Text]:
        chapter = each(prompts)
        for prompt in chapter:
            codes = Stream("codes")
            kv = self.left.kv()
            s = loop(steps=chapter.index, token=self.left.prefill(prompt, kv), count=0)
            for step in s:
                inner = loop(steps=3, token=s.token)
                for _ in inner:
                    inner.token = self.left.decode(inner.token, kv)
                    codes.put(inner.token)
                s.token = inner.token
                s.count = step
                s.stop_when(self.left.is_end(s.token))
            codes.put(s.token)
            own = self.right.kv()
            for window in windows(codes, size=28, stride=7):
                self.right.decode(self.snac.pack(window), own)
            chapter.collect(token=s.token, count=s.count)
        yield Text(self.snac.join(chapter.token, chapter.count))


MODELS = (Orpheus, Omni, Bagel, VJepa, Branch, Duet)


def all_walks():
    """Trace every walk, by name."""
    return {name: graph for model in MODELS for name, graph in model().graphs().items()}
