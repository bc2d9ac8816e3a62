"""Answers of any server are read as they come: bytes in whatever pieces, ends, refusals and cuts."""

import asyncio
import io
import json
import wave
from contextlib import suppress

import pytest

from mstar.cli.bench.http_client import ServerAddress, send_request
from mstar.cli.bench.records import RequestRecord
from mstar.cli.bench.request_kinds import REQUEST_KINDS, RequestBody
from mstar.cli.bench.response_readers import AudioReader, JsonReader, ResponseError, SseReader

EVENTS = b'data: {"n": 2}\r\n\r\n: still there\n\ndata: {"n": 3, "usage": {"completion_tokens": 9}}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Sample-Rate: 8000\r\n\r\n"


def wav(rate, channels, seconds):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(int(2 * channels * rate * seconds)))
    return file.getvalue()


# ---------------------------------------------------------------- readers
@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_a_wav_file_is_counted_in_seconds_without_its_head(size):
    reader, file = AudioReader({"content-type": "audio/wav"}), wav(16_000, 2, 0.25)
    came = [reader.feed(file[at : at + size]) for at in range(0, len(file), size)]
    assert sum(came) == pytest.approx(0.25)
    assert came[: 44 // size] == [0.0] * (44 // size)


def test_samples_are_counted_by_the_rate_that_is_reported():
    assert AudioReader({}).feed(bytes(48_000)) == 1.0
    assert AudioReader({"x-sample-rate": "8000"}).feed(bytes(8000)) == 0.5
    with pytest.raises(ResponseError, match="audio/mpeg"):
        AudioReader({"content-type": "audio/mpeg"})


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_events_are_read_across_their_pieces(size):
    reader = SseReader(lambda event: event["n"])
    came = [reader.feed(EVENTS[at : at + size]) for at in range(0, len(EVENTS), size)]
    assert [amount for amount in came if amount] == ([5] if size == 1000 else [2, 3])
    assert reader.tokens == 9


def test_an_error_in_a_stream_and_what_is_no_json_are_failures():
    with pytest.raises(ResponseError, match="overloaded: too much"):
        SseReader(len).feed(b'data: {"error": {"code": "overloaded", "message": "too much"}}\n\n')
    whole = JsonReader(len)
    assert whole.feed(b"<html>") == 0
    with pytest.raises(ResponseError, match="not a JSON object"):
        whole.finish()


@pytest.mark.parametrize(
    ("kind", "content", "amount"),
    [
        ("chat", {"choices": [{"delta": {"content": "Hi"}}]}, 1),
        ("chat", {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 0),
        ("chat", {"choices": [], "usage": {"completion_tokens": 3}}, 0),
        ("transcriptions", {"type": "transcript.text.delta", "delta": "a"}, 1),
        ("transcriptions", {"text": ""}, 1),
        ("images", {"created": 1, "data": [{"b64_json": ""}, {"b64_json": ""}]}, 2),
        ("images", {"type": "image_generation.partial_image", "b64_json": ""}, 1),
        ("embeddings", {"data": [{"embedding": []}]}, 1),
    ],
)
def test_what_counts_in_an_answer(kind, content, amount):
    assert REQUEST_KINDS[kind].count_outputs(content) == amount


# ---------------------------------------------------------------- over a connection
def run_request(kind, *pieces):
    """What a client notes of a server that sends these bytes, and what that heard."""
    received = []

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        received.append(head + await reader.readexactly(8))
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.02)
        writer.close()
        with suppress(ConnectionError):  # who had enough has left
            await writer.wait_closed()
        left.set()

    async def run():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            site = ServerAddress(f"http://localhost:{port}", "localhost", "127.0.0.1", port, "/here", "sesame", None)
            requests, record = RequestBody(b'{"a": 1}'), RequestRecord(kind, 0.0, 0.0)
            await send_request(site, REQUEST_KINDS[kind], requests, site.headers("ttft=0.5"), record, 0.0)
            await left.wait()
            return record

    left = asyncio.Event()
    return asyncio.run(run()), received[-1]


def test_a_chunk_is_one_part_in_however_many_packets():
    chunk = b"1f40\r\n" + bytes(4000), bytes(4000) + b"\r\n"
    record, received = run_request(
        "speech", HEAD, chunk[0], chunk[1] + b"fa0\r\n" + bytes(4000) + b"\r\n", b"0\r\n\r\n"
    )
    assert [amount for _, amount in record.chunks] == [0.5, 0.25]
    assert (record.status, record.error) == (200, "")
    assert record.sent_at + 0.03 < record.chunks[0][0] < record.ended_at
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /here/v1/audio/speech HTTP/1.1\r\n")
    lines = {*head.lower().split(b"\r\n")}
    assert {b"authorization: bearer sesame", b"mstar-slo: ttft=0.5", b"connection: close"} <= lines
    assert json.loads(body) == {"a": 1}


def test_a_refusal_is_noted_with_when_to_come_again():
    inputs = b'{"error": {"code": "overloaded", "message": "too much to do"}}'
    head = b"HTTP/1.1 429 No\r\nRetry-After: 3\r\nContent-Length: %d\r\n\r\n" % len(inputs)
    record, _ = run_request("chat", head + inputs)
    assert (record.status, record.retry_after, record.is_rejected) == (429, 3.0, True)
    assert record.error == "429 overloaded: too much to do"


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((HEAD, b"1f40\r\n" + bytes(8000) + b"\r\n"), "truncated:"),
        ((), "truncated:"),
        ((HEAD, b"0\r\n\r\n"), "the response is empty"),
        ((b"SSH-2.0\r\n\r\n",), "truncated:"),
    ],
)
def test_what_is_not_whole_is_an_error(pieces, error):
    record, _ = run_request("speech", *pieces)
    assert record.error.startswith(error)
    assert record.ended_at > record.sent_at


def test_an_answer_without_a_length_ends_with_its_connection():
    record, _ = run_request("embeddings", b"HTTP/1.0 200 OK\r\n\r\n", b'{"data": [{"embedding": [1]}]}')
    assert (record.error, [amount for _, amount in record.chunks]) == ("", [1.0])
