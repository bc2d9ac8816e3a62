"""The race of model servers: its clients, its requests, and that every server gives the same sound."""

import asyncio
import json
import re
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.in_process import one_thread
from bench.peers.clients import LoadResult, Response, closed_loop, open_loop, post
from bench.peers.peer_servers import PEERS, ROOT, Peer, ServerStartError, run_server
from bench.peers.speech_comparison import (
    OURS,
    AudioChecker,
    Comparison,
    is_on_time,
    mstar_audio,
    mstar_body,
    peer_audio,
    peer_body,
    servers,
    triton_audio,
    triton_body,
)
from bench.peers.traffic import FRAMES, HOP, RATE, TOKENS, decode_frames, encode_array, make_requests
from bench.peers.venvs import find_prepared, mark_prepared


# ---------------------------------------------------------------- clients
@asynccontextmanager
async def answering(*parts):
    """A server that sends these parts to each client, one after another, and records the requests."""
    requests, tasks = [], []

    async def serve(reader, writer):
        tasks.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        requests.append(await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0])))
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1], requests
        finally:
            await asyncio.gather(*tasks)


def test_a_client_reads_a_stream_part_by_part():
    async def run():
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with answering(head, b"5\r\nfirst\r\n", b"4\r\nlast\r\n0\r\n\r\n") as (port, requests):
            return await post(port, "/", b"{}"), requests

    answer, requests = asyncio.run(run())
    assert requests == [b"{}"]
    assert answer.content == b"firstlast"
    assert answer.first() == answer.first(re.compile(b"fir")) < answer.first(re.compile(b"last")) == answer.latency


def test_a_client_reads_an_answer_of_a_reported_length():
    async def run():
        async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"wh", b"ole") as (port, _):
            return await post(port, "/", b"{}")

    assert asyncio.run(run()).content == b"whole"


def test_a_refusal_is_no_answer():
    async def run():
        async with answering(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy") as (port, _):
            return await closed_loop(lambda _: post(port, "/speak", b"{}"), range(2), 1)

    turn = asyncio.run(run())
    assert [answer.status for _, answer in turn.all] == [503, 503]
    assert turn.responses == []
    assert turn.rate == 0


def test_a_closed_loop_has_as_many_clients_as_it_says_and_asks_all():
    live, most = 0, 0

    async def ask(number):
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001)
        live -= 1
        return Response(0.0, [(1.0, str(number).encode())])

    turn = asyncio.run(closed_loop(ask, range(20), 4))
    assert most == 4
    assert sorted(number for number, _ in turn.responses) == [*range(20)]
    assert all(answer.content == str(number).encode() for number, answer in turn.responses)


def test_an_open_loop_does_not_wait_for_responses():
    async def run():
        ended = asyncio.Event()
        waiting = 0

        async def ask(number):
            nonlocal waiting
            waiting += 1
            if waiting == 5:  # no response was sent yet
                ended.set()
            await ended.wait()
            return Response(0.0, [(1.0, b"")])

        return await open_loop(ask, range(5), rate=1000.0, seed=1)

    assert len(asyncio.run(run()).responses) == 5


def test_a_round_lasts_from_the_first_request_to_the_last_response():
    turn = LoadResult([("a", Response(1.0, [(1.5, b"x"), (4.0, b"y")])), ("b", Response(2.0, [(3.0, b"z")]))])
    assert turn.seconds == 3.0
    assert turn.rate == 2 / 3


# ---------------------------------------------------------------- requests
def test_requests_are_ragged_and_the_same_each_time():
    made, again, others = make_requests(40), make_requests(40), make_requests(40, seed=1)
    lengths = [len(one.frames) for one in made]
    assert min(lengths) >= FRAMES[0]
    assert max(lengths) <= FRAMES[1]
    assert len(set(lengths)) > 20
    assert len({one.tokens for one in made}) > 20
    assert all(TOKENS[0] <= one.tokens <= TOKENS[1] for one in made)
    assert all(np.array_equal(a.frames, b.frames) and a.tokens == b.tokens for a, b in zip(made, again, strict=True))
    assert [one.tokens for one in made] != [one.tokens for one in others]


def test_both_kinds_of_server_are_sent_the_same_frames():
    (params,) = make_requests(1)
    theirs, ours = peer_body(params), mstar_body(params)["request"]
    assert np.array_equal(decode_frames(theirs["frames"]), params.frames)
    assert ours["frames"]["data"] == theirs["frames"]
    assert ours["frames"]["shape"] == params.frames.shape
    assert ours["tokens"] == theirs["tokens"] == params.tokens


def test_both_kinds_of_answer_are_read_as_sound():
    sound = np.arange(10, dtype=np.float32)
    whole = json.dumps({"sound": encode_array(sound)}).encode()
    parts = [{"kind": "Audio", "value": {"data": encode_array(part)}} for part in np.split(sound, [3])]
    events = b"".join(b"event: x\ndata: " + json.dumps(one).encode() + b"\n\n" for one in (*parts, {"result": None}))
    assert np.array_equal(peer_audio(whole), sound)
    assert np.array_equal(mstar_audio(events), sound)


def test_a_request_and_an_answer_of_triton_are_one_string_each():
    (params,) = make_requests(1)
    (tensor,) = triton_body(params)["inputs"]
    assert json.loads(tensor["data"][0]) == peer_body(params)
    sound = np.arange(10, dtype=np.float32)
    content = json.dumps({"outputs": [{"name": "sound", "data": [encode_array(sound)]}]}).encode()
    assert np.array_equal(triton_audio(content), sound)


@pytest.mark.parametrize(
    ("times", "is_in_time"),
    [
        pytest.param((0.9, 1.0), True, id="all before the start"),
        pytest.param((0.9, 2.9), True, id="the second part just in time"),
        pytest.param((0.9, 3.1), False, id="a gap before the second part"),
        pytest.param((1.1, 1.2), False, id="a late start"),
    ],
)
def test_a_stream_is_on_time_if_no_part_is_played_before_it_comes(times, is_in_time):
    response = Response(10.0, [(10 + at, b"x" * 2 * RATE) for at in times])
    assert is_on_time(response, len) == is_in_time
    assert is_on_time(response, lambda _: 0) == (times[-1] <= 1)


def test_the_audio_checker_finds_wrong_and_short_audio():
    judge, sound = AudioChecker(), np.zeros(100, np.float32)
    for number, given in enumerate((sound, sound + 1e-6, sound + 1e-4, sound[:50])):
        judge.check(0, given)
        assert judge.mismatches == max(0, number - 1)
    judge.check(1, sound + 1)
    assert (judge.checked, judge.mismatches) == (5, 2)


# ---------------------------------------------------------------- servers
def test_a_venv_is_found_only_with_what_is_wanted_of_it(tmp_path):
    assert find_prepared(tmp_path, ["a==1", "b"]) is None
    mark_prepared(tmp_path, ["a==1", "b"])
    assert find_prepared(tmp_path, ["a==1", "b"]) == tmp_path / "bin" / "python"
    assert find_prepared(tmp_path, ["a==2", "b"]) is None


def test_a_server_that_ends_is_reported_with_what_it_given():
    peer = Peer("Broken", "none", (), ("-c", "raise SystemExit('no such model')"))
    with (
        pytest.raises(ServerStartError, match=r"(?s)Broken ended with status 1.*no such model"),
        run_server(peer, Path(sys.executable), b"{}"),
    ):
        pass


def test_a_server_does_not_outlive_a_bench_that_is_killed(tmp_path):
    payload = tmp_path / "pid"
    server = f"import os, time; open({str(payload)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    bench = f"""
import subprocess
import sys
import time
from pathlib import Path
from bench.peers.peer_servers import Peer, run_server
with run_server(Peer("Slow", "none", (), ("-c", {server!r})), Path(sys.executable), b"{{}}"):
    pass
"""
    killed = subprocess.Popen([sys.executable, "-c", bench], cwd=ROOT)
    _until(lambda: payload.exists() and payload.read_text())
    killed.kill()
    killed.wait()
    _until(lambda: not _is_running(int(payload.read_text())))


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(is_so):
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_batch_gives_what_each_request_gives_alone_and_mstar_gives_the_same():
    from bench.peers.pipeline import FullPipeline
    from bench.peers.pipeline_model import Pipeline, SpeechRequest

    with one_thread():
        whole, model, options = FullPipeline(), Pipeline(), make_requests(4)
        together = whole([one.frames for one in options], [one.tokens for one in options])
        for params, sound in zip(options, together, strict=True):
            (alone,) = whole([params.frames], [params.tokens])
            assert len(alone) == params.tokens * HOP
            ours = np.concatenate(
                [one.value for one in model.run(SpeechRequest(params.frames, params.tokens)).emissions]
            )
            np.testing.assert_allclose(sound, alone, rtol=0, atol=1e-5)
            np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_another_token_is_another_sound():
    from bench.peers.pipeline import VocoderStage

    sound = VocoderStage()
    tokens = np.arange(10)
    other = np.where(tokens == 4, 700, tokens)
    first, second = sound([tokens, other])
    assert np.array_equal(first[: 4 * HOP], second[: 4 * HOP])
    assert np.abs(first - second).max() > 1e-4


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_server_that_is_installed_gives_the_same_sound():
    with servers() as (there, absent):
        race = Comparison(there)
        race.warm_up()
    assert OURS in there
    assert {*there, *absent} == {OURS, *(peer.title for peer in PEERS)}
    assert race.checker.checked == 8 * len(there)
    assert race.checker.mismatches == 0
