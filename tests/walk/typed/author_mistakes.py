"""A model as an author writes it, with mistakes that an editor should underline: each line marked with `# error`."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Audio, Bool, Component, Float32, Int64, Model, Stream, Tensor, Text, loop, op, walk, windows


class LM(Component):
    @op
    def prefill(self, tokens: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]:
        return tokens

    @op
    def decode(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]:
        return token

    @op
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        return token == 5


class Codec(Component):
    @op
    def decode(self, codes: Int64[Tensor, "28 1"]) -> Float32[Tensor, "S"]:
        return codes.float()


class Author(Model):
    def __init__(self) -> None:
        self.lm, self.codec = LM(), Codec()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], limit: int) -> Iterator[Audio]:
        kv = self.lm.kv()
        codes = Stream("codes")
        s = loop(steps=limit, token=self.lm.prefill(prompt, kv))
        for _ in s:
            codes.put(s.token)
            s.token = self.lm.decode(s.token, kv)
            s.stop_when(self.lm.is_end(s.token))
        for window in windows(codes, size=28, stride=7):
            yield Audio(self.codec.decode(window), rate=24_000)

    @walk
    def mistaken(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        yield Text(self.lm.prefil(prompt, kv))  # error: op typo
        yield Text(self.lm.prefill(prompt))  # error: missing state
        yield Text(self.lm.prefill(prompt, kv, temperature=0.7))  # error: unknown argument
        yield Text(self.lm.prefill(kv, prompt))  # error: swapped
        yield Text(self.lmm.prefill(prompt, kv))  # error: unknown component
        yield Text(self.lm.decode(self.lm.prefill(prompt, kv), kv=self.codec))  # error: no state

    @walk
    def sounds(self, codes: Int64[Tensor, "28 1"]) -> Iterator[Audio]:
        yield Audio(self.codec.decode(codes))  # error: no rate
        yield Audio(self.codec.decode(codes), rate="fast")  # error: rate is a number
        yield Text(self.codec.decode(codes))  # error: not what this walk yields
        for window in windows(Stream("codes")):  # error: no size
            yield Audio(self.codec.decode(window), rate=24_000)
        for _ in loop():  # error: no steps
            pass

    async def route(self, request: str) -> None:
        kv: KV = self.lm.kv()
        await self.speak(request, limit=3)  # error: text is no tensor
        await self.speak()  # error: no arguments
        await self.speek(request)  # error: walk typo
        self.lm.prefill(request, kv.fork())  # error: text is no tensor
