"""Plans: partitions, transfers and their frequency, batch keys, straight-line bodies."""

import copy
import dataclasses
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mstar import Latents, Model, Stream, choose, loop, walk, windows
from mstar.plan.compile import MIN_STREAM_BOUND_ITEMS, plan
from mstar.plan.describe import describe
from mstar.plan.placement import parse_placement
from mstar.plan.straight_line import NON_BLOCKING_OPCODES
from mstar.plan.tables import BatchKey, Opcode
from mstar.testing.parity import random_placement
from tests.plan.plan_harness import EXAMPLES, IntOps, Memory, WalkHarness, example, make_placement

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
SPREAD = {"workers": ["gpu0", "gpu1", "gpu2"], "spread": True}
PLACED = {
    "orpheus": make_placement(lm="gpu0", lm_prefill="gpu1", snac=["gpu2", "gpu3"]),
    "qwen3_omni": parse_placement(
        {
            "place": {
                "audio_encoder": "gpu0",
                "thinker": "gpu1",
                "talker": "gpu2",
                "predictor": "gpu3",
                "vocoder": "gpu4",
            }
        }
    ),
    "bagel": make_placement({"draw": {"lm": SPREAD}}, lm="gpu0", vit="gpu1", vae="gpu1", guidance="gpu0"),
    "vjepa2_ac": make_placement(encoder="gpu0", predictor=["gpu1", "gpu2"], cem="cpu"),
}


def graphs_of(name):
    return example(name)[0].graphs()


def moves(the_plan):
    """The states that move: from worker, to worker, inside how many regions."""
    workers = [worker_set.workers[0] for worker_set in the_plan.worker_sets]
    return [(workers[c.source], workers[c.target], c.depth) for c in the_plan.cut_edges if c.is_state]


def sent(the_plan):
    return [(c.name, c.source, c.target, c.depth) for c in the_plan.cut_edges if not c.is_state and not c.is_stream]


def keys_of(plans, walk_name):
    return [(str(plans.keys[key]), key) for key, _ in plans.walks[walk_name].calls]


class Pair(Model):
    """Two components whose ops call each other in many ways."""

    def __init__(self):
        self.a, self.b = IntOps(), IntOps()

    @walk
    def turns(self, n: int, memory: Memory) -> int:
        s = loop(steps=n, x=0)
        for _ in s:
            s.x = self.a.tell(s.x, memory)
            self.a.note(s.x, memory)
        return s.x

    @walk
    def deep(self, n: int, memory: Memory) -> None:
        for _ in loop(steps=n):
            for step in loop(steps=2):
                self.a.tell(step, memory)
            self.a.note(n, memory)

    @walk
    def looks(self, memory: Memory) -> tuple[list[int], int]:
        return self.a.recall(memory), self.a.tell(1, memory)

    @walk
    def static(self, x: int) -> int:
        return self.a.times(self.a.times(self.b.times(self.a.times(x, by=2), by=2), by=3), by=2)

    @walk
    def again(self, x: int) -> int:
        return self.a.inc(self.a.times(x, by=3))


class Shapes(Model):
    """Bodies that are straight, and bodies that are not."""

    def __init__(self):
        self.a = IntOps()

    @walk
    def chain(self, n: int, memory: Memory) -> Iterator[Latents]:
        s = loop(steps=n, x=0)
        for step in s:
            first = self.a.tell(step, memory)
            own = memory.fork()
            s.x = self.a.add(s.x, self.a.tell(first, own))
            yield Latents(s.x)
            s.stop_when(self.a.is_big(s.x))

    @walk
    def beside(self, n: int) -> int:
        s = loop(steps=n, x=0, y=0)
        for _ in s:
            s.x, s.y = self.a.inc(s.x), self.a.inc(s.y)
        return self.a.add(s.x, s.y)

    @walk
    def silent(self, n: int) -> Iterator[Latents]:
        for step in loop(steps=n):
            yield Latents(step)

    @walk
    def nested(self, n: int) -> int:
        s = loop(steps=n, x=0)
        for _ in s:
            t = loop(steps=2, x=s.x)
            for _ in t:
                t.x = self.a.inc(t.x)
            s.x = choose(self.a.is_big(t.x), t.x, s.x)
        return s.x

    @walk
    def reads(self, n: int) -> int:
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        s = loop(steps=n, x=0)
        for _ in s:
            s.x = self.a.add(s.x, items.get(default=0))
        return s.x


def body_of(model, name, placement=None, at_seat=0):
    """The table of the last body in a walk, at one seat."""
    bodies = plan(model.graphs(), placement).walks[name].programs[at_seat].bodies
    return bodies[max(bodies)]


# ---------------------------------------------------------------- what runs where
@pytest.mark.parametrize("name", sorted(PLACED))
def test_a_placed_example_reads_as_before(name, golden):
    graphs = graphs_of(name)
    golden(GOLDEN / f"{name}.txt", describe(plan(graphs, PLACED[name]), graphs))


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.iterdir()} == {*PLACED, "placement.unreadable", "placement.unfit"}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_crosses_on_one_worker(name):
    graphs = graphs_of(name)
    plans = plan(graphs)
    assert all(len(the_plan.worker_sets) == 1 and not the_plan.cut_edges for the_plan in plans.walks.values())
    assert not [
        i for p in plans.walks.values() for b in p.programs[0].bodies.values() for i in b.instructions if i.sends
    ]
    text = describe(plans, graphs)
    assert text.count("  nothing crosses\n") == len(graphs)
    assert text.count(" on local\n") == len(graphs)


@pytest.mark.parametrize("name", NAMES)
def test_every_call_sits_on_a_worker_of_its_entry(name):
    graphs = graphs_of(name)
    for seed in range(5):
        placement = random_placement(graphs, random.Random(seed))
        plans = plan(graphs, placement)
        for walk_name, the_plan in plans.walks.items():
            for key, seat in the_plan.calls:
                called = plans.keys[key]
                entry = placement.rule(walk_name, called.component, called.op)
                assert the_plan.worker_sets[seat].workers == entry.workers


def test_calls_are_where_the_tables_have_them():
    plans = plan(graphs_of("qwen3_omni"), PLACED["qwen3_omni"])
    for the_plan in plans.walks.values():
        calls = [
            (instruction.detail.key, part.seat)
            for part in the_plan.programs
            for body in part.bodies.values()
            for instruction in body.instructions
            if instruction.opcode is Opcode.CALL
        ]
        assert sorted(calls) == sorted(the_plan.calls)


# ---------------------------------------------------------------- what crosses
def test_the_cache_moves_once_from_prefill_to_decode():
    assert moves(plan(graphs_of("orpheus"), PLACED["orpheus"]).walks["speak"]) == [("gpu1", "gpu0", 0)]


def test_a_state_that_two_workers_extend_moves_both_ways_each_iteration():
    plans = plan(Pair().graphs(), make_placement(a="w0", a_note="w1", b="w0"))
    assert sorted(moves(plans.walks["turns"])) == [("w0", "w1", 1), ("w1", "w0", 1)]


def test_a_state_moves_in_the_region_that_needs_it():
    plans = plan(Pair().graphs(), make_placement(a="w0", a_note="w1", b="w0"))
    # told inside on w0, noted on w1 after each inner loop: never moved inside the inner loop
    assert sorted(moves(plans.walks["deep"])) == [("w0", "w1", 1), ("w1", "w0", 1)]


def test_a_state_that_is_read_where_the_request_starts_is_not_moved():
    plans = plan(Pair().graphs(), make_placement(a="w0", a_recall="w1", b="w0"))
    assert moves(plans.walks["looks"]) == []  # every seat is given the inputs it needs


def test_the_frequency_of_a_transfer_is_described():
    graphs = {"plan": graphs_of("vjepa2_ac")["plan"]}
    text = describe(
        plan(graphs, make_placement(encoder="gpu0", predictor="gpu1", predictor_observe="gpu2", cem="cpu")), graphs
    )
    assert "[3] sends %z.2: float32[N#1, 64] to [2], each inner iteration" in text
    assert "[1] moves %kv: state KV to [3], once" in text


def test_a_stop_flag_goes_to_everyone_in_the_loop():
    class Stops(Model):
        def __init__(self):
            self.a, self.b, self.c = IntOps(), IntOps(), IntOps()

        @walk
        def go(self, n: int) -> int:
            s = loop(steps=n, x=0, y=0)
            for _ in s:
                s.x, s.y = self.a.inc(s.x), self.b.inc(s.y)
                s.stop_when(self.c.is_big(s.x))
            return s.y

    the_plan = plan(Stops().graphs(), make_placement(a="w0", b="w1", c="w2")).walks["go"]
    flag = [(source, target) for name, source, target, _ in sent(the_plan) if name == "is_big"]
    assert sorted(flag) == [(2, 0), (2, 1)]


def test_a_value_crosses_once_however_often_it_is_used():
    class Often(Model):
        def __init__(self):
            self.a, self.b = IntOps(), IntOps()

        @walk
        def go(self, n: int) -> int:
            x = self.a.inc(n)
            s = loop(steps=n, y=x)
            for _ in s:
                s.y = self.b.add(self.b.add(s.y, x), x)
            return self.b.add(s.y, x)

    the_plan = plan(Often().graphs(), make_placement(a="w0", b="w1")).walks["go"]
    assert sent(the_plan) == [("inc", 0, 1, 0)]


def test_a_constant_is_made_where_it_is_used():
    class Ends(Model):
        def __init__(self):
            self.a, self.b = IntOps(), IntOps()

        @walk
        def go(self, n: int) -> Iterator[Latents]:
            items = Stream("items")
            for step in loop(steps=n):
                items.put(self.a.inc(step))
            for _ in loop(steps=n):
                yield Latents(self.b.inc(items.get(default=0)))

    crossings = plan(Ends().graphs(), make_placement(a="w0", b="w1")).walks["go"].cut_edges
    assert [crossing.name for crossing in crossings] == ["~items"]


def test_a_stream_has_room_for_two_of_its_largest_windows():
    class Wide(Model):
        def __init__(self):
            self.a = IntOps()

        @walk
        def go(self, n: int) -> Iterator[Latents]:
            items = Stream("items")
            for step in loop(steps=n):
                items.put(self.a.inc(step))
            for window in windows(items, size=20, context=30):
                yield Latents(self.a.fold(window))

    writers = [i.detail for i in body_of_root(Wide()).instructions if i.opcode is Opcode.WRITER]
    assert [(writer.min_bound, writer.bound) for writer in writers] == [(50, 100)]
    (small,) = [i.detail for i in body_of_root(Shapes(), "reads").instructions if i.opcode is Opcode.WRITER]
    assert (small.min_bound, small.bound) == (1, MIN_STREAM_BOUND_ITEMS)


def body_of_root(model, name="go"):
    return plan(model.graphs()).walks[name].programs[0].bodies[0]


# ---------------------------------------------------------------- what shares a batch
def test_walks_share_the_keys_of_ops_they_share():
    plans = plan(graphs_of("bagel"))
    think, answer = dict(keys_of(plans, "think")), dict(keys_of(plans, "answer"))
    assert think["lm.decode"] == answer["lm.decode"]
    assert len({str(key) for key in plans.keys}) == len(plans.keys)


def test_calls_of_one_op_in_one_walk_share_a_key():
    plans = plan(graphs_of("bagel"))
    flows = {key for name, key in keys_of(plans, "draw") if name == "lm.flow"}
    assert len(flows) == 1


def test_static_arguments_and_the_component_are_part_of_the_key():
    plans = plan(Pair().graphs())
    two, other, three, last = keys_of(plans, "static")
    assert [name for name, _ in (two, other, three, last)] == [
        "a.times[by=2]",
        "b.times[by=2]",
        "a.times[by=3]",
        "a.times[by=2]",
    ]
    assert two == last
    assert len({two, other, three}) == 3
    assert keys_of(plans, "again")[0] == three
    assert plans.keys[two[1]] == BatchKey("a", "times", (("by", 2),))


def test_keys_do_not_depend_on_the_placement():
    graphs = graphs_of("qwen3_omni")
    assert plan(graphs).keys == plan(graphs, PLACED["qwen3_omni"]).keys


# ---------------------------------------------------------------- tables are made once, and shared
@pytest.mark.parametrize("name", NAMES)
def test_planning_twice_gives_equal_tables(name):
    graphs = graphs_of(name)
    for seed in range(4):
        placement = random_placement(graphs, random.Random(seed))
        assert plan(graphs, placement) == plan(graphs_of(name), placement)


def test_planning_does_not_depend_on_the_hash_seed():
    code = (
        "import hashlib, random\n"
        "from tests.plan.test_plan import graphs_of, random_placement, plan\n"
        "graphs = graphs_of('qwen3_omni')\n"
        "plans = [plan(graphs, random_placement(graphs, random.Random(seed))) for seed in range(6)]\n"
        "print(hashlib.sha256(repr(plans).encode()).hexdigest())\n"
    )

    def digest(seed):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    first = digest("1")
    assert len(first) == 65
    assert first == digest("2")


@pytest.mark.parametrize("part", ["plans", "plan", "part", "body", "instruction", "detail"])
def test_tables_are_frozen(part):
    plans = plan(graphs_of("noop"))
    the_plan = plans.walks["count"]
    body = the_plan.programs[0].bodies[0]
    tables = {
        "plans": plans,
        "plan": the_plan,
        "part": the_plan.programs[0],
        "body": body,
        "instruction": body.instructions[0],
        "detail": body.instructions[0].detail,
    }
    table = tables[part]
    for field in dataclasses.fields(table):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(table, field.name, None)


def test_runs_of_one_plan_do_not_disturb_each_other():
    model = Pair()
    first, second = WalkHarness(model, walk="turns"), WalkHarness(model, walk="turns")
    second.plan = first.plan
    second.runs[0].program = first.runs[0].program
    before = copy.deepcopy(first.plan)
    first.start(3, Memory())
    second.start(2, Memory())
    for name in ("a.tell", "a.note", "a.tell", "a.note"):
        first.call(name)
        second.call(name)
    assert second.runs[0].is_done
    assert not first.runs[0].is_done
    first.finish()
    assert (first.outputs, second.outputs) == ([5], [3])
    assert first.plan == before


# ---------------------------------------------------------------- straight bodies
def test_calls_that_follow_one_another_need_no_counters():
    body = body_of(Shapes(), "chain")
    assert body.first_segment is not None
    assert [body.instructions[i].opcode for i in body.order].count(Opcode.CALL) == 4


@pytest.mark.parametrize("name", ["beside", "silent"])
def test_calls_side_by_side_and_bodies_without_calls_are_counted(name):
    body = body_of(Shapes(), name)
    assert body.first_segment is None
    assert body.order == ()
    assert all(instruction.next_segment is None for instruction in body.instructions)


def test_bodies_with_regions_or_gets_are_counted():
    bodies = plan(Shapes().graphs()).walks["nested"].programs[0].bodies
    kinds = {number: {instruction.opcode for instruction in body.instructions} for number, body in bodies.items()}
    outer = next(number for number, opcodes in kinds.items() if Opcode.CHOOSE in opcodes)
    inner = next(n for n, opcodes in kinds.items() if opcodes == {Opcode.CALL} and n != outer)
    assert bodies[outer].first_segment is None
    assert bodies[inner].first_segment is not None
    assert body_of(Shapes(), "reads").first_segment is None


def test_bodies_that_other_seats_enter_are_counted():
    placement = make_placement(a="w0", a_is_big="w1")
    the_plan = plan(Shapes().graphs(), placement).walks["chain"]
    inner = [part.bodies[max(part.bodies)] for part in the_plan.programs]
    assert all(body.remote_inputs or any(i.sends for i in body.instructions) for body in inner)
    assert all(body.first_segment is None for body in inner)


def test_real_loops_are_straight_or_not_as_expected():
    def is_straight(name, walk_name, op):
        plans = plan(graphs_of(name))
        bodies = plans.walks[walk_name].programs[0].bodies.values()
        (body,) = [
            body
            for body in bodies
            if any(i.opcode is Opcode.CALL and str(plans.keys[i.detail.key]) == op for i in body.instructions)
        ]
        return body.first_segment is not None

    assert is_straight("orpheus", "speak", "lm.decode")
    assert is_straight("orpheus", "speak", "snac.decode")
    assert is_straight("bagel", "answer", "lm.decode")
    assert is_straight("vjepa2_ac", "plan", "predictor.advance")
    assert is_straight("qwen3_omni", "talk", "predictor.extend")
    assert not is_straight("rag", "answer", "lm.decode")  # two questions about one token, side by side
    assert not is_straight("bagel", "draw", "lm.flow")
    assert not is_straight("qwen3_omni", "talk", "talker.talk")
    assert not is_straight("rag", "answer", "retriever.embed")


def followed(body):
    """Everything that a straight body does, in the order of its segments."""
    segment, opcodes = body.first_segment, []
    while segment is not None:
        opcodes += segment.instructions
        if segment.call is None:
            break
        opcodes.append(segment.call)
        segment = segment.call.next_segment
    return opcodes


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rag"])  # which has no straight body
def test_no_instruction_of_a_straight_body_is_lost(name):
    graphs = graphs_of(name)
    straight = 0
    for seed in range(5):
        plans = plan(graphs, random_placement(graphs, random.Random(seed)) if seed else None)
        bodies = [body for p in plans.walks.values() for part in p.programs for body in part.bodies.values()]
        for body in bodies:
            if body.first_segment is None:
                continue
            straight += 1
            order = [instruction.index for instruction in followed(body)]
            assert tuple(order) == body.order
            assert sorted(order) == [*range(len(body.instructions))]
            assert {instruction.opcode for instruction in body.instructions} <= NON_BLOCKING_OPCODES
            place = {index: position for position, index in enumerate(order)}
            woken = [(i.index, after) for i in body.instructions for after in i.dependents]
            assert all(place[before] < place[after] for before, after in woken)
    assert straight
