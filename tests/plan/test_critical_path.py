"""How far it is from each call to what the client gets next."""

from mstar.plan.compile import plan
from mstar.plan.tables import Opcode, RemainingIterations
from mstar.walk.load import load_model


def paths_to_output(target, walk):
    """The leads of every call of a walk, by the name of its op; a later call of the same op counts."""
    plans = plan(load_model(target).graphs())
    names = [f"{key.component}.{key.op}" for key in plans.keys]
    found = {}
    for part in plans.walks[walk].programs:
        for body in part.bodies.values():
            for instruction in body.instructions:
                if instruction.opcode is Opcode.CALL:
                    found[names[instruction.detail.key]] = {
                        lead.kind: (
                            {names[key]: count for key, count in lead.keys},
                            [
                                (one.levels_up, {names[key]: count for key, count in one.keys}, one)
                                for one in lead.loops
                            ],
                        )
                        for lead in instruction.detail.paths
                    }
    return found


def test_a_stream_is_gone_through_by_windows():
    found = paths_to_output("examples/orpheus.py", "speak")
    assert found["lm.prefill"]["Audio"] == ({"lm.decode": 27, "lm.is_end": 27, "snac.decode": 1}, [])
    keys, rounds = found["lm.decode"]["Audio"]
    assert keys == {"lm.is_end": 1, "snac.decode": 1}
    ((up, body, window),) = rounds
    assert (up, body) == (0, {"lm.decode": 1, "lm.is_end": 1})
    # The first window has 28 codes. In round 0 one is there, and the next is its second: 26 more rounds after that.
    assert [window.count_iterations(index, 999) for index in (0, 25, 26, 27, 28, 33, 34)] == [26, 1, 0, 6, 5, 0, 6]
    assert found["snac.decode"]["Audio"] == ({}, [])


def test_what_comes_after_a_loop_waits_for_all_its_rounds():
    found = paths_to_output("examples/bagel.py", "draw")
    keys, ((up, body, left),) = found["guidance.mix"]["Image"]
    assert keys == {"guidance.euler": 1, "vae.decode": 1}
    assert (up, body) == (0, {"lm.flow": 3, "guidance.mix": 1, "guidance.euler": 1})
    assert [left.count_iterations(index, 49) for index in (0, 47, 48)] == [48, 1, 0]


def test_each_kind_has_its_own_way_and_loops_nest():
    found = paths_to_output("examples/qwen3_omni.py", "talk")
    assert found["thinker.prefill"]["Text"] == ({}, [])
    assert found["thinker.prefill"]["Audio"][0]["predictor.extend"] == 375
    assert found["talker.talk"].keys() == {"Audio"}
    rounds = found["predictor.extend"]["Audio"][1]
    assert [(up, bool(one.stride)) for up, _, one in rounds] == [(0, False), (1, True)]


def test_what_leads_to_no_emission_leads_to_the_end():
    found = paths_to_output("examples/bagel.py", "look")
    assert found["vae.encode"] == {"": ({"lm.see": 2}, [])}
    assert found["vit.encode"] == {"": ({"lm.see": 1}, [])}


def test_a_loop_that_is_not_gone_round_again_takes_no_time():
    assert RemainingIterations(0, ()).count_iterations(10, 5) == 0
    assert RemainingIterations(0, (), 1, 1, 1).count_iterations(7, 9) == 0
