"""Critical paths from each call to the next output."""

from mstar.plan.compile import plan
from mstar.plan.tables import Opcode, RemainingIterations
from mstar.walk.load import load_model


def paths_to_output(target, walk):
    """Paths of every call of a walk, by op name; the last call of an op wins."""
    plans = plan(load_model(target).graphs())
    names = [f"{key.component}.{key.op}" for key in plans.keys]
    paths = {}
    for part in plans.walks[walk].programs:
        for body in part.bodies.values():
            for instruction in body.instructions:
                if instruction.opcode is Opcode.CALL:
                    paths[names[instruction.detail.key]] = {
                        path.kind: (
                            {names[key]: count for key, count in path.keys},
                            [
                                (loop.levels_up, {names[key]: count for key, count in loop.keys}, loop)
                                for loop in path.loops
                            ],
                        )
                        for path in instruction.detail.paths
                    }
    return paths


def test_a_stream_counts_iterations_until_the_next_window():
    paths = paths_to_output("examples/orpheus.py", "speak")
    assert paths["lm.prefill"]["Audio"] == ({"lm.decode": 27, "lm.is_end": 27, "snac.decode": 1}, [])
    keys, rounds = paths["lm.decode"]["Audio"]
    assert keys == {"lm.is_end": 1, "snac.decode": 1}
    ((up, body, window),) = rounds
    assert (up, body) == (0, {"lm.decode": 1, "lm.is_end": 1})
    # The first window has 28 codes. Iteration 0 starts with one and adds the second: 26 more iterations follow.
    assert [window.count_iterations(index, 999) for index in (0, 25, 26, 27, 28, 33, 34)] == [26, 1, 0, 6, 5, 0, 6]
    assert paths["snac.decode"]["Audio"] == ({}, [])


def test_an_output_after_a_loop_counts_all_remaining_iterations():
    paths = paths_to_output("examples/bagel.py", "draw")
    keys, ((up, body, left),) = paths["guidance.mix"]["Image"]
    assert keys == {"guidance.euler": 1, "vae.decode": 1}
    assert (up, body) == (0, {"lm.flow": 3, "guidance.mix": 1, "guidance.euler": 1})
    assert [left.count_iterations(index, 49) for index in (0, 47, 48)] == [48, 1, 0]


def test_each_kind_has_its_own_path_and_loops_nest():
    paths = paths_to_output("examples/qwen3_omni.py", "talk")
    assert paths["thinker.prefill"]["Text"] == ({}, [])
    assert paths["thinker.prefill"]["Audio"][0]["predictor.extend"] == 375
    assert paths["talker.talk"].keys() == {"Audio"}
    rounds = paths["predictor.extend"]["Audio"][1]
    assert [(up, bool(loop.stride)) for up, _, loop in rounds] == [(0, False), (1, True)]


def test_a_call_without_an_emission_leads_to_the_end():
    paths = paths_to_output("examples/bagel.py", "look")
    assert paths["vae.encode"] == {"": ({"lm.see": 2}, [])}
    assert paths["vit.encode"] == {"": ({"lm.see": 1}, [])}


def test_a_loop_in_its_last_iteration_adds_nothing():
    assert RemainingIterations(0, ()).count_iterations(10, 5) == 0
    assert RemainingIterations(0, (), 1, 1, 1).count_iterations(7, 9) == 0
