"""A response that is generated again goes on after the outputs that were forwarded, or fails if it differs."""

import random

import pytest

from mstar.server.errors import ApiError
from mstar.server.realtime.output_position import OutputPosition

OUTPUTS = [("Text", b"a"), ("Audio", b"1"), ("Text", b"b"), ("Audio", b"2"), ("Audio", b"3"), ("Text", b"c")]


def generate(position, outputs):
    return [output for output in outputs if position.advance(*output)]


def shuffled(chosen):
    """The same outputs with another interleaving of the kinds."""
    kinds = {kind: [output for output in OUTPUTS if output[0] == kind] for kind in ("Text", "Audio")}
    return [kinds[kind].pop(0) for kind in chosen.sample([kind for kind, _ in OUTPUTS], len(OUTPUTS))]


def test_each_output_is_forwarded_once_over_three_servers():
    chosen = random.Random(3)
    for _ in range(200):
        first, second = sorted(chosen.sample(range(len(OUTPUTS) + 1), 2))
        forwarded, marks = [], {}
        for stop in (first, second, len(OUTPUTS)):
            position = OutputPosition(marks)
            forwarded += generate(position, shuffled(chosen)[:stop])
            marks = position.marks
        position.check_complete()
        for kind in ("Text", "Audio"):
            assert [one for one in forwarded if one[0] == kind] == [one for one in OUTPUTS if one[0] == kind]


@pytest.mark.parametrize("changed", range(3))
def test_another_output_before_the_position_fails_the_response(changed):
    position = OutputPosition()
    generate(position, OUTPUTS[:4])
    other = [*OUTPUTS]
    other[changed] = other[changed][0], b"else"
    with pytest.raises(ApiError, match="generated different output"):
        generate(OutputPosition(position.marks), other)


def test_fewer_outputs_fail_the_response():
    position = OutputPosition()
    generate(position, OUTPUTS[:4])
    again = OutputPosition(position.marks)
    assert generate(again, OUTPUTS[:3]) == []
    with pytest.raises(ApiError, match="generated different output"):
        again.check_complete()
    assert again.marks == position.marks, "a third server continues at the same place"
