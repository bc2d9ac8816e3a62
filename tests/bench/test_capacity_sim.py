"""Figures of the capacity simulation bench."""

from bench.deadlines.capacity_sim import (
    Figures,
    Pair,
    cost_key,
    figure_errors,
    figures,
    is_same_order,
    rows,
    total_work_s,
    with_warm_up,
)
from bench.deadlines.traffic import Arrival, StreamResult
from mstar.plan.tables import BatchKey
from mstar.requests import SpeechRequest
from mstar.sim.call_trace import CallTrace


def pair(rule: str, real: float, simulated: float, load: float = 1.0) -> Pair:
    return Pair(load, rule, Figures(real, 0.2, 0.4, 2.0), Figures(simulated, 0.1, 0.4, 2.5), 1.0)


def test_figures_of_what_clients_got():
    received = [StreamResult(i, [(i + 0.1 * (i + 1), 1.0), (i + 0.5, 1.0)], i + 1.0, "ok") for i in range(10)]
    received.append(StreamResult(10.0, ended_at=10.001, status="429"))
    results = figures(received)
    assert round(results.first_p50_s, 6) == 0.6
    assert round(results.first_p90_s, 6) == 1.0
    assert results.on_time == (5 + 10) / 21  # five first ones came too late, and one got nothing
    assert results.served == 10 / 10.0


def test_each_figure_is_compared_with_the_real_one():
    results = {name: round(value, 6) for name, value in pair("by slack", 0.8, 0.9).differences.items()}
    assert results == {"on_time": 0.125, "first_p50_s": 0.5, "first_p90_s": 0.0, "served": 0.25}


def test_a_figure_is_off_by_its_average():
    results = figure_errors([pair("a", 0.8, 0.9), pair("b", 0.8, 0.8)])
    assert results == {"on_time": 0.062, "first_p50_s": 0.5, "first_p90_s": 0.0, "served": 0.25}


def test_the_order_of_policies_is_the_same_unless_two_swap():
    assert is_same_order([pair("a", 0.9, 0.8), pair("b", 0.7, 0.6)])
    assert not is_same_order([pair("a", 0.9, 0.6), pair("b", 0.7, 0.8)])
    assert is_same_order([pair("a", 0.9, 0.89), pair("b", 0.91, 0.8)])  # as good as equal for real
    assert is_same_order([pair("a", 0.9, 0.6), pair("b", 0.7, 0.8, load=0.5)])  # at another load


def test_the_work_is_that_of_all_sentences():
    say = BatchKey("tts", "synthesize")
    book = CallTrace({}, cost_key, call_seconds={(say, "Wait here.", ()): 0.01, (say, "Good morning.", ()): 0.02})
    asks = ["Wait here. Good morning. Wait here.", "Good morning."]
    arrivals = [Arrival(at, SpeechRequest(text)) for at, text in enumerate(asks)]
    assert round(total_work_s(book, arrivals), 6) == 0.06
    first, *others = with_warm_up(arrivals)
    assert first.at == 0.0
    assert [one.at for one in others] == [1.5, 2.5]


def test_what_matters_of_a_sentence_is_not_its_seed():
    inputs = [
        cost_key("tts.synthesize", {"text": "Hello.", "speech": SpeechRequest("Hello.", seed=seed), "step": 0})
        for seed in (1, 2)
    ]
    assert inputs == ["Hello.", "Hello."]
    assert cost_key("tts.split_sentences", {"speech": SpeechRequest("Hello.")}) is None


def test_every_pair_has_a_row_for_each_figure():
    results = {row.name: (row.values, row.unit) for row in rows([pair("by slack", 0.8, 0.9)])}
    assert results["load 1.0, by slack, simulated: chunks on time"] == ([90.0], "%")
    assert results["load 1.0, by slack, real: first chunk p50"] == ([200.0], "ms")
    assert len(results) == 8
