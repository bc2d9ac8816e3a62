"""The client recognizes complete, wrong, declared and cut responses of a real connection."""

import asyncio
import json

import pytest

from bench.game_day.client import Request, classify, parse_events, parse_json, send
from bench.game_day.headline import nonzero_metrics
from bench.game_day.load import parse_bytes, repeat_first_word
from bench.game_day.observations import CUT, DECLARED, LEFT, UNANSWERED, WHOLE, WRONG
from bench.game_day.realtime import end_of_turn

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def token(text):
    return chunk(f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode())


DONE, ERROR = chunk(b"data: [DONE]\n\n"), chunk(b'event: error\ndata: {"error": {"code": "model_error"}}\n\n')
LAST = chunk(b"")


def exchange(response, **fields):
    """What a client gets from a server that sends these bytes and closes."""

    async def run():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await send(server.sockets[0].getsockname()[1], Request("GET", "/", "key", **fields))

    return asyncio.run(run())


def end_of(response, expected, *, has_left=False, **fields):
    answer = exchange(response, **fields)
    return classify(answer, parse_events(answer), expected, has_left=has_left)


@pytest.mark.parametrize(
    ("response", "end"),
    [
        (HEAD + token("a ") + token("b ") + DONE + LAST, WHOLE),
        (HEAD + token("a ") + DONE + LAST, WRONG),
        (HEAD + token("a ") + token("c ") + DONE + LAST, WRONG),
        (HEAD + token("a ") + token("a ") + ERROR + LAST, WRONG),
        (HEAD + token("a ") + ERROR + LAST, DECLARED),
        (HEAD + token("a "), CUT),
        (HEAD + token("a ") + LAST, CUT),
        (HEAD + token("a ") + token("b ")[:-9], CUT),
        (b"", CUT),
        (b'HTTP/1.1 429 X\r\ncontent-length: 33\r\n\r\n{"error": {"code": "overloaded"}}', DECLARED),
    ],
)
def test_the_end_of_a_stream(response, end):
    assert end_of(response, "a b ") == end


def test_a_client_that_leaves_early():
    assert end_of(HEAD + token("a ") + token("b "), "a b ", has_left=True, leave_after=1) == LEFT


def test_no_answer_is_an_end_of_its_own():
    answer = exchange(HEAD + LAST)
    assert classify(None, parse_events(answer), "a", has_left=False) == UNANSWERED


def test_retry_times_are_read():
    answer = exchange(b"HTTP/1.1 429 X\r\nRetry-After: 1\r\nretry-after-ms: 250\r\ncontent-length: 0\r\n\r\n")
    assert answer.retry_after_s == 0.25


def test_a_file_that_is_cut_is_not_complete():
    whole, cut = exchange(HEAD + chunk(b"ab") + LAST), exchange(HEAD + chunk(b"ab"))
    assert parse_bytes(whole).is_finished
    assert not parse_bytes(cut).is_finished


def test_emissions_of_any_model_are_joined():
    events = chunk(b'event: emission\ndata: {"value": 0}\n\nevent: emission\ndata: {"value": 1}\n\n')
    answer = exchange(HEAD + events + chunk(b"event: result\ndata: null\n\n") + LAST)
    assert classify(answer, parse_events(answer), "0 1 ", has_left=False) == WHOLE


def test_a_json_body_with_a_text():
    body = b'{"text": "hello"}'
    answer = exchange(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    assert parse_json(answer).text == "hello"


def test_a_mixture_of_two_processes_differs_from_its_reference():
    answer = exchange(HEAD + token("12 ") + token("13 ") + ERROR + LAST)
    content = parse_events(answer)
    assert classify(answer, content, repeat_first_word(content), has_left=False) == WRONG


def test_metrics_other_than_zero_are_listed():
    page = '# HELP mstar_states x\nmstar_states{process="t1"} 2.0\nmstar_states{process="p1"} 0.0\nmstar_statesx 1.0\n'
    assert nonzero_metrics(page, ("mstar_states",)) == {'mstar_states{process="t1"}': 2.0}


@pytest.mark.parametrize(
    ("response", "text", "end"),
    [
        ({"status": "completed"}, "1 2 ", (WHOLE, "", "1 2 ")),
        ({"status": "completed"}, "1 ", (WRONG, "", "1 ")),
        (
            {"status": "failed", "status_details": {"error": {"code": "poison_request"}}},
            "1 ",
            (DECLARED, "poison_request", "1 "),
        ),
        ({"status": "cancelled", "status_details": None}, "3 ", (WRONG, "cancelled", "3 ")),
    ],
)
def test_the_end_of_a_realtime_turn(response, text, end):
    assert end_of_turn(response, text, "1 2 ") == end
