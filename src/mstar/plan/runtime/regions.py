"""Regions in a running walk: entering loops, windows, eaches and choices, going round, and leaving them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.plan.runtime.frame import Frame, OnBodyEnd
from mstar.plan.runtime.streams import ReaderEnd, detach_reader, release, wait_for_items
from mstar.plan.tables import Instruction, Opcode, Region
from mstar.walk.values import stack

if TYPE_CHECKING:
    from mstar.plan.runtime.run import PartitionRun

BODY_END = -1
"""In a run's list of things to do: an iteration of this frame has ended."""
NEXT_WINDOW = -2
"""In a run's list of things to do: the next window of this frame may be there."""


def enter(run: PartitionRun, frame: Frame, instruction: Instruction, arm: int = 0) -> Frame:
    """A frame for a body of a region, with what it takes from outside."""
    region: Region = instruction.detail
    inner = Frame(
        run, run.program.bodies[region.bodies[arm]], frame, instruction, _BODY_END_HANDLERS[instruction.opcode]
    )
    slots, outer = inner.slots, frame.slots
    for source, target in region.copy_in[arm]:
        slots[target] = outer[source]
    return inner


def loop(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Start a loop."""
    inner = enter(run, frame, instruction)
    region: Region = inner.region
    for _, out in region.collect:
        frame.slots[out] = []
    inner.limit = region.steps if region.control < 0 else int(frame.slots[region.control])
    if inner.limit <= 0:
        exit_region(run, inner)
    else:
        iterate(run, inner)
    return False


def iterate(run: PartitionRun, frame: Frame) -> None:
    """Run a frame's body for its current index."""
    if frame.region.counter >= 0:
        frame.slots[frame.region.counter] = frame.index
    run.begin(frame)


def windows(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Start reading a stream by windows."""
    try_next_window(run, enter(run, frame, instruction))
    return False


def try_next_window(run: PartitionRun, frame: Frame) -> None:
    """Start the next window, end the region, or wait to know which."""
    region: Region = frame.region
    window = region.window
    if window is None:
        key = (region.more, frame.path())
        if key in run.early_values:
            on_more_windows(run, frame, run.early_values.pop(key))
        else:
            run.expected[key] = frame
        return
    assert frame.parent is not None
    assert frame.instruction is not None
    reader: ReaderEnd = frame.parent.slots[frame.instruction.args[0]]
    end = window.first + frame.index * window.stride
    seen = end - window.stride if frame.index else 0
    has_one = reader.total >= end or (reader.is_closed and window.flush and seen < reader.total)
    if not has_one and not reader.is_closed:
        wait_for_items(run, reader, end, (frame, NEXT_WINDOW))
        return
    slots = frame.slots
    slots[window.more] = has_one
    if has_one:
        slots[window.item] = stack(reader.between(max(0, end - window.size), end))
        slots[window.fresh] = min(end, reader.total) - seen
        release(run, reader, max(0, end + window.stride - window.size))
    sends = window.sends if has_one else tuple(send for send in window.sends if send.slot == window.more)
    if sends:
        run.send(frame, sends)
    if has_one:
        iterate(run, frame)
    else:
        detach_reader(run, reader)
        exit_region(run, frame)


def on_more_windows(run: PartitionRun, frame: Frame, is_more: bool) -> None:
    """The seat that reads the stream says whether there is one more window."""
    if is_more:
        iterate(run, frame)
    else:
        exit_region(run, frame)


def each(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Start the bodies of an each, all at once."""
    region: Region = instruction.detail
    count = frame.slots[region.control]
    for _, out in region.collect:
        frame.slots[out] = [None] * count
    if not count:
        return True
    if frame.unfinished is None:
        frame.unfinished = {}
    frame.unfinished[instruction.index] = count
    for index in range(count):
        inner = enter(run, frame, instruction)
        inner.index = index
        iterate(run, inner)
    return False


def choose(run: PartitionRun, frame: Frame, instruction: Instruction) -> bool:
    """Start one arm of a choice."""
    region: Region = instruction.detail
    arm = 0 if bool(frame.slots[region.control]) else 1
    inner = enter(run, frame, instruction, arm)
    inner.index = arm
    run.begin(inner)
    return False


def end_root(run: PartitionRun, frame: Frame) -> bool:
    """The walk has run to its end here."""
    run.end(frame)
    return False


def end_window(run: PartitionRun, frame: Frame) -> bool:
    """On to the next window."""
    carry_over(frame)
    frame.index += 1
    try_next_window(run, frame)
    return False


def end_choice(run: PartitionRun, frame: Frame) -> bool:
    """An arm has run to its end."""
    exit_region(run, frame)
    return False


def end_iteration(run: PartitionRun, frame: Frame) -> bool:
    """What is collected and what stops the loop are values of this iteration: look at them before they are replaced."""
    region, slots = frame.region, frame.slots
    if region.collect:
        assert frame.parent is not None
        for source, out in region.collect:
            frame.parent.slots[out].append(slots[source])
    index = frame.index = frame.index + 1
    goes_on = index < frame.limit
    for flag in region.stop:
        if slots[flag]:
            goes_on = False
    if region.carry:
        carry_over(frame)
    if not goes_on:
        exit_region(run, frame)
    elif region.counter >= 0:
        slots[region.counter] = index
    return goes_on


def carry_over(frame: Frame) -> None:
    """Give the next iteration its values, all at once: one carry may take what another had."""
    slots, moves = frame.slots, frame.region.carry
    if len(moves) == 1:
        source, target = moves[0]
        slots[target] = slots[source]
    else:
        values = [slots[source] for source, _ in moves]
        for (_, target), value in zip(moves, values, strict=True):
            slots[target] = value


def end_each(run: PartitionRun, frame: Frame) -> bool:
    """One body of an each has ended."""
    parent, instruction, region = frame.parent, frame.instruction, frame.region
    assert parent is not None
    assert parent.unfinished is not None
    assert instruction is not None
    for source, out in region.collect:
        parent.slots[out][frame.index] = frame.slots[source]
    parent.unfinished[instruction.index] -= 1
    if not parent.unfinished[instruction.index]:
        run.finish(parent, instruction)
    return False


def exit_region(run: PartitionRun, frame: Frame) -> None:
    """Give what a region gives, and go on behind it."""
    parent, instruction, region = frame.parent, frame.instruction, frame.region
    assert parent is not None
    assert instruction is not None
    for source, target in region.copy_out[frame.index if instruction.opcode is Opcode.CHOOSE else 0]:
        parent.slots[target] = frame.slots[source]
    run.finish(parent, instruction)


_BODY_END_HANDLERS: dict[Opcode, OnBodyEnd] = {
    Opcode.LOOP: end_iteration,
    Opcode.WINDOWS: end_window,
    Opcode.EACH: end_each,
    Opcode.CHOOSE: end_choice,
}
