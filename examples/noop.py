"""The smallest model: a loop around an identity op."""

from collections.abc import Iterator

from mstar import Component, Latents, Model, loop, op, walk


class Same(Component):
    @op
    def same(self, x: int) -> int:
        return x


class Noop(Model):
    def __init__(self) -> None:
        self.part = Same()

    @walk
    def count(self, steps: int) -> Iterator[Latents]:
        for step in loop(steps=steps):
            yield Latents(self.part.same(step))


def requests() -> list[dict[str, int]]:
    return [{"steps": 3}, {"steps": 7}]
