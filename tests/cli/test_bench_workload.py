"""When requests are sent and of which kind, from flags and files; everything that is drawn comes from a seed."""

from random import Random
from statistics import mean, pstdev

import pytest

from mstar.cli.bench import prompts
from mstar.cli.bench.arrivals import make_arrivals, read_trace
from mstar.cli.bench.records import SloTarget
from mstar.cli.bench.workload import apply_flags, parse_mix, read_workload, workload_of_kinds
from mstar.errors import LoadError


# ---------------------------------------------------------------- when
@pytest.mark.parametrize("burstiness", [0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_spread_that_were_asked_for(burstiness):
    times = [one.at for one in make_arrivals({"chat": 5.0}, burstiness, 1, 1e9, 20_000)]
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert mean(gaps) == pytest.approx(0.2, rel=0.08)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(burstiness, rel=0.08)


def test_one_seed_gives_the_same_times_whatever_else_is_asked():
    alone = make_arrivals({"chat": 3.0}, 1.0, 7, 20.0, 1000)
    mixed = make_arrivals({"speech": 2.0, "chat": 3.0, "images": 0.0}, 1.0, 7, 20.0, 1000)
    assert [one for one in mixed if one.kind == "chat"] == alone
    assert {one.kind for one in mixed} == {"chat", "speech"}
    assert mixed == sorted(mixed)
    assert mixed[-1].at < 20.0
    assert make_arrivals({"chat": 3.0}, 1.0, 8, 20.0, 1000) != alone
    assert len(make_arrivals({"chat": 3.0}, 1.0, 7, 20.0, 5)) == 5


def test_a_trace_says_when_and_what(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 2, "kind": "chat", "text": "Hi."}\n\n{"at": 0.5, "kind": "speech", "model": "m"}\n')
    first, second = read_trace(trace, ["chat", "speech"])
    assert (first.at, first.kind, first.overrides) == (0.5, "speech", {"model": "m"})
    assert (second.at, second.kind, second.overrides) == (2.0, "chat", {"text": "Hi."})
    assert read_trace(trace, ["chat", "speech"], seconds=1.0) == [first]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no request"),
        ('{"kind": "chat"}', "jsonl:1"),
        ('{"at": 1, "kind": "chat"}\nnothing', "jsonl:2"),
        ('{"at": 1, "kind": "chatt"}', "did you mean `chat`"),
        ('{"at": 1, "kind": "chat", "words": 3}', "`words`"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(tmp_path, content, words):
    (tmp_path / "trace.jsonl").write_text(content)
    with pytest.raises(LoadError, match="fix:") as raised:
        read_trace(tmp_path / "trace.jsonl", ["chat"])
    assert words in str(raised.value)


def test_texts_are_short_medium_and_long():
    drawn = [prompts.sample_prompt(Random(seed)) for seed in range(200)]
    sentences = [text.count(".") + text.count("?") for text in drawn]
    assert {1, 3, 8} <= {*sentences}
    assert max(sentences) == 10
    assert drawn[:3] == [prompts.sample_prompt(Random(seed)) for seed in range(3)]


# ---------------------------------------------------------------- what
def test_a_mix_has_rates_and_robots():
    mix = parse_mix("speech=2,chat=0.5,images,robot=3@10hz")
    assert [(kind, one.number) for kind, one in mix.items()] == [
        ("speech", 2.0),
        ("chat", 0.5),
        ("images", None),
        ("robot", 3.0),
    ]
    assert mix["robot"].hz == 10.0


def test_models_slos_and_rates_are_given_by_kind():
    flags = ("speech=hibari,chat=smol,robot=arm", ["speech=ttft:0.5,continuity:0.05", "chat=3"], "speech=ttft=0.5")
    workload = apply_flags(parse_mix("speech=2,chat=4,robot=1@10hz"), *flags)
    assert [one.model for one in workload.values()] == ["hibari", "smol", "arm"]
    assert workload["speech"].slo == SloTarget(ttft=0.5, continuity=0.05)
    assert workload["chat"].slo == SloTarget(total=3.0)
    assert workload["robot"].slo == SloTarget(total=0.1)  # until its next tick
    assert [one.server_slo for one in workload.values()] == ["ttft=0.5", "", ""]


def test_one_model_is_asked_for_everything():
    assert [one.model for one in apply_flags(workload_of_kinds(["chat", "speech"]), "omni", [], "").values()] == [
        "omni",
        "omni",
    ]


@pytest.mark.parametrize(
    ("mix", "flags", "words"),
    [
        ("speach", ("m", [], ""), "did you mean `speech`"),
        ("chat=four", ("m", [], ""), "'chat=four' is invalid"),
        ("chat=0", ("m", [], ""), "'chat=0' is invalid"),
        ("chat=4@5hz", ("m", [], ""), "'chat=4@5hz' is invalid"),
        ("chat,speech", ("chat=m", [], ""), "no model for speech"),
        ("chat", ("m", ["speech=1"], ""), "matches no kind of the workload (`chat`)"),
        ("chat", ("m", ["chat=soon:1"], ""), "'soon:1' is not an SLO"),
        ("chat", ("m", [], "batch"), "--server-slo"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(mix, flags, words):
    with pytest.raises(LoadError, match="fix:") as raised:
        apply_flags(parse_mix(mix), *flags)
    assert words in str(raised.value)


def test_a_workload_says_it_all_in_a_file(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text("""
        [speech]
        number = 2
        model = "hibari"
        server_slo = "ttft=0.5"
        slo = "ttft:0.5,continuity:0.1"
        body = {voice = "alto"}
        [images]
        slo = 30
        [robot]
        number = 1
        hz = 20
    """)
    workload = apply_flags(read_workload(path), "images=sd3,robot=arm", [], "")
    speech, images, robot = workload.values()
    assert (speech.number, speech.model, speech.server_slo, speech.params) == (
        2,
        "hibari",
        "ttft=0.5",
        {"voice": "alto"},
    )
    assert (images.slo, images.number, images.model) == (SloTarget(total=30.0), None, "sd3")
    assert (robot.hz, robot.slo) == (20, SloTarget(total=0.05))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[chat", "w.toml"),
        ("", "the workload is empty"),
        ("[chatt]", "did you mean `chat`"),
        ("chat = 4", "[chat]"),
        ("[chat]\nmodle = 'm'", "did you mean `model`"),
        ("[chat]\nnumber = 'two'", "number = 'two'"),
        ("[robot]\nhz = 0", "hz = 0"),
    ],
)
def test_a_workload_that_cannot_be_read_says_why(tmp_path, content, words):
    (tmp_path / "w.toml").write_text(content)
    with pytest.raises(LoadError, match="fix:") as raised:
        read_workload(tmp_path / "w.toml")
    assert words in str(raised.value)
