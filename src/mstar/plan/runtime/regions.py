"""Control-flow regions of a running walk: enter, iterate and exit `loop`, `windows`, `each` and `choose`."""

from __future__ import annotations

from mstar.plan.runtime.frame import Frame, OnBodyEnd, Run
from mstar.plan.runtime.stream_ends import ReaderEnd
from mstar.plan.runtime.streams import detach_reader, release, wait_for_items
from mstar.plan.tables import Instruction, Opcode, Region
from mstar.walk.values import stack

BODY_END = -1
"""Entry of a run's todo list: an iteration of this frame has ended."""
NEXT_WINDOW = -2
"""Entry of a run's todo list: retry the next window of this frame."""


def enter(run: Run, frame: Frame, instruction: Instruction, arm: int = 0) -> Frame:
    """Create the frame of a region's body and copy its inputs from the outer frame."""
    region: Region = instruction.detail
    inner = Frame(
        run, run.program.bodies[region.bodies[arm]], frame, instruction, _BODY_END_HANDLERS[instruction.opcode]
    )
    slots, outer = inner.slots, frame.slots
    for source, target in region.copy_in[arm]:
        slots[target] = outer[source]
    return inner


def loop(run: Run, frame: Frame, instruction: Instruction) -> bool:
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


def iterate(run: Run, frame: Frame) -> None:
    """Run a frame's body for its current index."""
    if frame.region.counter >= 0:
        frame.slots[frame.region.counter] = frame.index
    run.begin(frame)


def windows(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Start reading a stream in windows."""
    try_next_window(run, enter(run, frame, instruction))
    return False


def try_next_window(run: Run, frame: Frame) -> None:
    """Start the next window, exit the region at the end of the stream, or wait for items."""
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
    previous_end = end - window.stride if frame.index else 0
    has_window = reader.total >= end or (reader.is_closed and window.flush and previous_end < reader.total)
    if not has_window and not reader.is_closed:
        wait_for_items(run, reader, end, (frame, NEXT_WINDOW))
        return
    slots = frame.slots
    slots[window.more] = has_window
    if has_window:
        slots[window.item] = stack(reader.between(max(0, end - window.size), end))
        slots[window.fresh] = min(end, reader.total) - previous_end
        release(run, reader, max(0, end + window.stride - window.size))
    sends = window.sends if has_window else tuple(send for send in window.sends if send.slot == window.more)
    if sends:
        run.send(frame, sends)
    if has_window:
        iterate(run, frame)
    else:
        detach_reader(run, reader)
        exit_region(run, frame)


def on_more_windows(run: Run, frame: Frame, is_more: bool) -> None:
    """Apply the decision of the partition that reads the stream: one more window, or the end."""
    if is_more:
        iterate(run, frame)
    else:
        exit_region(run, frame)


def each(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Start all bodies of an `each` region."""
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


def choose(run: Run, frame: Frame, instruction: Instruction) -> bool:
    """Start the arm of a choice that its flag selects."""
    region: Region = instruction.detail
    arm = 0 if bool(frame.slots[region.control]) else 1
    inner = enter(run, frame, instruction, arm)
    inner.index = arm
    run.begin(inner)
    return False


def end_root(run: Run, frame: Frame) -> bool:
    """Finish the partition's part of the walk."""
    run.end(frame)
    return False


def end_window(run: Run, frame: Frame) -> bool:
    """Advance to the next window."""
    carry_over(frame)
    frame.index += 1
    try_next_window(run, frame)
    return False


def end_choice(run: Run, frame: Frame) -> bool:
    """Finish an arm of a choice."""
    exit_region(run, frame)
    return False


def end_iteration(run: Run, frame: Frame) -> bool:
    """Finish one loop iteration: collect and test the stop flags before the carried values are replaced."""
    region, slots = frame.region, frame.slots
    if region.collect:
        assert frame.parent is not None
        for source, out in region.collect:
            frame.parent.slots[out].append(slots[source])
    index = frame.index = frame.index + 1
    continues = index < frame.limit
    for flag in region.stop:
        if slots[flag]:
            continues = False
    if region.carry:
        carry_over(frame)
    if not continues:
        exit_region(run, frame)
    elif region.counter >= 0:
        slots[region.counter] = index
    return continues


def carry_over(frame: Frame) -> None:
    """Move carried values to the next iteration, all at once: one carry can read another's old value."""
    slots, moves = frame.slots, frame.region.carry
    if len(moves) == 1:
        source, target = moves[0]
        slots[target] = slots[source]
    else:
        values = [slots[source] for source, _ in moves]
        for (_, target), value in zip(moves, values, strict=True):
            slots[target] = value


def end_each(run: Run, frame: Frame) -> bool:
    """Finish one body of an `each` region."""
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


def exit_region(run: Run, frame: Frame) -> None:
    """Copy a region's results to the outer frame and continue after it."""
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
