"""Placements: what a file may say, every way in which it can be wrong, and which line decides."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from mstar import Model, PlacementError, walk
from mstar.plan.compile import plan
from mstar.plan.placement import LOCAL_WORKER, Placement, PlacementRule, WorkerSet, parse_placement, read_placement
from tests.plan.plan_harness import IntOps, Memory, example, make_placement

GOLDEN = Path(__file__).parent / "golden"


class Two(Model):
    """Two walks over two components."""

    def __init__(self):
        self.lm, self.vae = IntOps(), IntOps()

    @walk
    def read(self, x: int) -> int:
        return self.lm.inc(x)

    @walk
    def draw(self, x: int) -> int:
        return self.vae.inc(self.lm.add(self.lm.inc(x), x))


class Idle(Model):
    """A walk that calls nothing beside one that does."""

    def __init__(self):
        self.lm = IntOps()

    @walk
    def echo(self, x: int) -> int:
        return x

    @walk
    def read(self, x: int) -> int:
        return self.lm.inc(x)


class ManyStates(Model):
    """Many states of one request, and calls without any."""

    def __init__(self):
        self.lm = IntOps()

    @walk
    def go(self, a: Memory, b: Memory, c: Memory, d: Memory) -> tuple[int, int, int, int, int, int]:
        results = tuple(self.lm.tell(1, memory) for memory in (b, a, c, d))
        return (*results, self.lm.inc(1), self.lm.tell(2, a))


GRAPHS = Two().graphs()
ALL = {"lm": PlacementRule(("gpu0",)), "vae": PlacementRule(("gpu1",))}


def parsed(text):
    return parse_placement(tomllib.loads(text))


def error_text(text):
    """The problems of a placement that cannot be parsed."""
    with pytest.raises(PlacementError) as caught:
        parsed(text)
    assert all(problem.fix and problem.site == "placement" for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


def unfit_error(placement):
    """The problems of a placement that does not fit the model."""
    with pytest.raises(PlacementError) as caught:
        placement.check(GRAPHS)
    return [problem.message for problem in caught.value.problems]


# ---------------------------------------------------------------- what may be written
def test_a_file_is_read_in_all_its_forms(tmp_path):
    path = tmp_path / "place.toml"
    path.write_text(
        """
        [place]
        lm = "gpu0"
        "lm.prefill" = ["gpu1"]
        snac = ["gpu1", "gpu2"]
        vae = { workers = "gpu3" }
        [walks.draw]
        lm = { workers = ["gpu0", "gpu1"], spread = true }
        """
    )
    assert read_placement(path) == Placement(
        {
            "lm": PlacementRule(("gpu0",)),
            "lm.prefill": PlacementRule(("gpu1",)),
            "snac": PlacementRule(("gpu1", "gpu2")),
            "vae": PlacementRule(("gpu3",)),
        },
        {"draw": {"lm": PlacementRule(("gpu0", "gpu1"), spread=True)}},
    )


def test_components_have_settings():
    lines = (
        'dtype = "bfloat16"',
        'quantization = "int8"',
        'attention_backend = "flashinfer"',
        'kv_cache_dtype = "fp8"',
        'engine = "vllm"',
        'vllm_args = "--enforce-eager"',
    )
    placement = parsed("\n".join(["[components.lm]", *lines]))
    placement.check(GRAPHS)
    settings = {"dtype": "bfloat16", "quantization": "int8"}
    settings |= {"attention_backend": "flashinfer", "kv_cache_dtype": "fp8"}
    settings |= {"engine": "vllm", "vllm_args": "--enforce-eager"}
    assert placement.component_settings == {"lm": settings}
    assert placement.workers() == (LOCAL_WORKER,)


def test_an_empty_file_leaves_everything_on_one_worker():
    placement = parsed("")
    placement.check(GRAPHS)
    assert placement.rule("read", "lm", "inc") == PlacementRule((LOCAL_WORKER,))
    assert placement.workers() == (LOCAL_WORKER,)


def test_workers_come_in_order_of_first_mention_and_once():
    placement = parsed('[place]\nlm = ["c", "a"]\nvae = "a"\n[walks.draw]\nvae = ["b", "c"]')
    assert placement.workers() == ("c", "a", "b")


# ---------------------------------------------------------------- what may not
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('plac = "x"', "the file has the unknown key `plac` (did you mean `place`?)"),
        ("zebra = 1", "the file has the unknown key `zebra`"),
        ("place = 3", "[place] is 3, not a table"),
        ("components = 3", "[components] is 3, not a table"),
        ('[components.lm]\ndtype = "bf16"', "[components.lm]: dtype = 'bf16'"),
        ('[components.lm]\nengine = "sglang"', "[components.lm]: engine = 'sglang'"),
        ("[components.lm]\nengine = 'vllm'\nvllm_args = 3", "[components.lm]: vllm_args = 3"),
        ("[components.lm]\nvllm_args = '-x'", "[components.lm]: vllm_args without an engine"),
        ('[place]\nlm = "a"\n[workers.a]\npython = 3', "[workers.a]: python = 3"),
        ("[components.lm]\nquantization = 8", "[components.lm]: quantization = 8"),
        ('[components.lm]\ndtyp = "float32"', "[components.lm] has the unknown key `dtyp` (did you mean `dtype`?)"),
        ("walks = []", "[walks] is [], not a table"),
        ('[walks]\ndraw = "gpu0"', "[walks.draw] is 'gpu0', not a table"),
        ("[place]\nlm = []", "[place] lm = [] names no workers"),
        ('[place]\nlm = ""', "[place] lm = '' names no workers"),
        ("[place]\nlm = 3", "[place] lm = 3 names no workers"),
        ('[place]\nlm = ["a", 1]', "[place] lm = ['a', 1] names no workers"),
        ('[place]\nlm = ["a", ""]', "[place] lm = ['a', ''] names no workers"),
        ("[place]\nlm = { spread = true }", "[place] lm = {'spread': True} names no workers"),
        ('[place]\nlm = ["a", "b", "a"]', "[place] lm names a worker twice: ['a', 'b', 'a']"),
        ('[place]\nlm = { workers = ["a"], spread = 1 }', "[place] lm: spread = 1"),
        (
            '[place]\nlm = { workers = ["a"], sprad = true }',
            "[place] lm has the unknown key `sprad` (did you mean `spread`?)",
        ),
        ('[walks.draw]\nlm = ["a", "a"]', "[walks.draw] lm names a worker twice: ['a', 'a']"),
    ],
)
def test_a_mistake_is_reported(text, what):
    assert error_text(text) == [what]


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "nowhere.toml"
    with pytest.raises(PlacementError, match=r"nowhere\.toml: cannot be read: .*No such file"):
        read_placement(path)


def test_a_file_that_is_not_toml(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[place\n")
    with pytest.raises(PlacementError, match=r"bad\.toml: cannot be read: .*line 1"):
        read_placement(path)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(b'[place]\nlm = "gpu\xff"\n')
    with pytest.raises(PlacementError, match="cannot be read"):
        read_placement(path)


def test_mistakes_of_a_file_are_reported_with_its_name(tmp_path):
    path = tmp_path / "place.toml"
    path.write_text("[place]\nlm = []\n")
    with pytest.raises(PlacementError) as caught:
        read_placement(path)
    assert [problem.site for problem in caught.value.problems] == [str(path)]


def test_all_mistakes_of_a_file_are_reported_at_once(golden):
    text = """
    plaice = 1
    [place]
    lm = []
    "lm.inc" = ["a", "a"]
    vae = { wrkers = "a", workers = "a", spread = "yes" }
    [walks]
    read = 7
    [walks.draw]
    lm = { }
    """
    with pytest.raises(PlacementError) as caught:
        parsed(text)
    assert len(caught.value.problems) == 7
    golden(GOLDEN / "placement.unreadable.txt", f"{caught.value}\n")


def test_a_worker_can_use_a_share_of_the_memory_of_its_device():
    workers = '[workers.a]\ndevice = "cuda:0"\nmemory = 0.5\n[workers.b]\ndevice = "cuda:1"'
    placed = parsed(f'[place]\nlm = ["a", "b"]\n{workers}')
    assert {name: resources.memory for name, resources in placed.worker_resources.items()} == {"a": 0.5, "b": None}


@pytest.mark.parametrize("line", ["memory = 0", "memory = 1.5", "memory = true", 'memory = "80GB"'])
def test_a_share_of_memory_is_between_0_and_1(line):
    with pytest.raises(PlacementError, match=r"\[workers.a\]: memory = .*\n.*memory = 0.85"):
        parsed(f'[place]\nlm = "a"\n[workers.a]\ndevice = "cuda:0"\n{line}')


def test_a_share_of_memory_needs_a_device():
    with pytest.raises(PlacementError, match=r"memory = 0.5 without a device\n.*device = \"cuda:0\""):
        parsed('[place]\nlm = "a"\n[workers.a]\nmemory = 0.5')


# ---------------------------------------------------------------- what does not fit the model
def test_an_unknown_component_op_or_walk_is_reported_with_the_closest_name():
    assert unfit_error(Placement({**ALL, "vea": PlacementRule(("a",))})) == [
        "[place] names `vea`, which no walk calls (did you mean `vae`?)"
    ]
    assert unfit_error(Placement({**ALL, "lm.ink": PlacementRule(("a",))})) == [
        "[place] names `lm.ink`, which no walk calls (did you mean `lm.inc`?)"
    ]
    assert unfit_error(Placement(ALL, component_settings={"vea": {"dtype": "float32"}})) == [
        "[components.vea] names no component (did you mean `vae`?)"
    ]
    assert unfit_error(Placement(ALL, {"drew": {}})) == ["[walks.drew] names no walk (did you mean `draw`?)"]


def test_a_name_of_another_walk_is_unknown_in_this_one():
    assert unfit_error(Placement(ALL, {"read": {"vae": PlacementRule(("a",)), "lm": PlacementRule(("a",))}})) == [
        "[walks.read] names `vae`, which no walk calls"
    ]


def test_names_under_an_unknown_walk_are_compared_with_the_whole_model():
    assert unfit_error(Placement(ALL, {"drew": {"vae": PlacementRule(("a",)), "zebra": PlacementRule(("a",))}})) == [
        "[walks.drew] names no walk (did you mean `draw`?)",
        "[walks.drew] names `zebra`, which no walk calls",
    ]


def test_an_op_that_exists_but_is_never_called_is_unknown():
    assert unfit_error(Placement({**ALL, "lm.recall": PlacementRule(("a",))})) == [
        "[place] names `lm.recall`, which no walk calls"
    ]


def test_ops_without_a_rule_are_reported_per_walk():
    assert unfit_error(Placement({"lm.inc": PlacementRule(("a",))})) == [
        "no rule places lm.add of walk `draw`",
        "no rule places vae.inc of walk `draw`",
    ]
    assert unfit_error(Placement({}, {"draw": ALL})) == ["no rule places lm.inc of walk `read`"]


def test_planning_checks_the_placement():
    with pytest.raises(PlacementError, match=r"no rule places vae\.inc of walk `draw`"):
        plan(GRAPHS, make_placement(lm="gpu0"))


def test_all_mismatches_are_reported_at_once(golden):
    placement = Placement(
        {"lm.inc": PlacementRule(("a",)), "vea": PlacementRule(("a",)), "lm.ad": PlacementRule(("b",))},
        {"drew": {"lm": PlacementRule(("a",))}, "read": {"vae": PlacementRule(("a",))}},
    )
    with pytest.raises(PlacementError) as caught:
        placement.check(GRAPHS, "gpus.toml")
    golden(GOLDEN / "placement.unfit.txt", f"{caught.value}\n")


# ---------------------------------------------------------------- which entry decides
@pytest.mark.parametrize(
    ("place", "own", "worker"),
    [
        (["lm"], [], "lm"),
        (["lm", "lm.inc"], [], "lm.inc"),
        (["lm", "lm.inc"], ["lm"], "draw lm"),
        (["lm", "lm.inc"], ["lm", "lm.inc"], "draw lm.inc"),
        (["lm"], ["lm.inc"], "draw lm.inc"),
        (["lm", "lm.inc"], ["lm.add"], "lm.inc"),
        ([], ["lm"], "draw lm"),
    ],
)
def test_walk_before_model_and_op_before_component(place, own, worker):
    entries = {key: PlacementRule((key,)) for key in place}
    walks = {"draw": {key: PlacementRule((f"draw {key}",)) for key in own}}
    assert Placement(entries, walks).rule("draw", "lm", "inc") == PlacementRule((worker,))


def test_a_walk_of_its_own_does_not_touch_the_others():
    placement = make_placement({"draw": {"lm": "gpu1"}}, lm="gpu0", vae="gpu2")
    plans = plan(GRAPHS, placement)
    assert plans.walks["read"].worker_sets == (WorkerSet(("gpu0",)),)
    assert plans.walks["draw"].worker_sets == (WorkerSet(("gpu1",)), WorkerSet(("gpu2",)))
    assert plans.workers == ("gpu0", "gpu2", "gpu1")


def test_what_is_not_placed_is_none_once_anything_is():
    assert Placement({"vae": PlacementRule(("a",))}).rule("read", "lm", "inc") is None


# ---------------------------------------------------------------- replicas and lanes
def test_replicas_are_one_seat_of_several_workers():
    draw = plan(GRAPHS, make_placement(lm=["gpu0", "gpu1"], vae=["gpu0", "gpu1"])).walks["draw"]
    assert draw.worker_sets == (WorkerSet(("gpu0", "gpu1")),)
    assert draw.cut_edges == ()


def test_other_replicas_are_another_seat():
    draw = plan(GRAPHS, make_placement(lm=["gpu0", "gpu1"], vae=["gpu1"])).walks["draw"]
    assert draw.worker_sets == (WorkerSet(("gpu0", "gpu1")), WorkerSet(("gpu1",)))


def test_spread_states_are_assigned_round_robin():
    placement = make_placement(lm={"workers": ["a", "b", "c"], "spread": True})
    the_plan = plan(ManyStates().graphs(), placement).walks["go"]
    # lanes are given in order of first use: b, a, c, d; a call without a state takes the first
    assert [the_plan.worker_sets[seat].spread_index for _, seat in the_plan.calls] == [0, 1, 2, 0, 0, 1]
    assert {worker_set.workers for worker_set in the_plan.worker_sets} == {("a", "b", "c")}


def test_states_that_are_not_spread_share_a_lane():
    the_plan = plan(ManyStates().graphs(), make_placement(lm=["a", "b", "c"])).walks["go"]
    assert [the_plan.worker_sets[seat].spread_index for _, seat in the_plan.calls] == [0] * 6


def test_spread_over_one_worker_is_one_seat():
    the_plan = plan(ManyStates().graphs(), make_placement(lm={"workers": ["a"], "spread": True})).walks["go"]
    assert the_plan.worker_sets == (WorkerSet(("a",)),)


def test_the_three_caches_of_a_drawing_are_on_three_workers():
    model, _ = example("bagel")
    lm = {"workers": ["gpu0", "gpu1", "gpu2"], "spread": True}
    placement = make_placement({"draw": {"lm": lm}}, lm="gpu0", vit="gpu0", vae="gpu0", guidance="gpu0")
    draw = plan(model.graphs(), placement).walks["draw"]
    flows = [worker_set for worker_set in draw.worker_sets if len(worker_set.workers) == 3]
    assert [worker_set.spread_index for worker_set in flows] == [0, 1, 2]


def test_a_walk_that_calls_nothing_is_on_the_first_worker():
    plans = plan(Idle().graphs(), make_placement(lm=["gpu3", "gpu1"]))
    assert plans.walks["echo"].worker_sets == (WorkerSet(("gpu3",)),)
    assert plan(Idle().graphs()).walks["echo"].worker_sets == (WorkerSet((LOCAL_WORKER,)),)


def test_a_placement_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Placement().place = {}


def test_a_dotted_key_without_quotes_is_rejected_with_a_fix():
    with pytest.raises(PlacementError) as caught:
        parse_placement(tomllib.loads('[place]\nlm.prefill = "gpu1"\n'))
    (problem,) = caught.value.problems
    assert problem.message == "[place] lm is a table of `prefill`: a key with a dot makes one"
    assert problem.fix == 'write the key in quotes: "lm.prefill" = ...'
