"""Retry and resumption, without a network: interruptions at every position."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar.client.errors import (
    ClientError,
    NotFound,
    ServerBusy,
    ServerError,
    ServerUnreachable,
    StreamDiverged,
    StreamInterrupted,
)
from mstar.client.retry import (
    ApiCall,
    Chunk,
    ConnectionLost,
    ReadMore,
    ResponseHead,
    SendRequest,
    Sleep,
    request_with_retry,
)

REQUEST = SendRequest("POST", "/", {"X-Request-Id": "r"}, {})
END = b"."


class Letters:
    """Reads a response with capitals in one channel and other letters in another; a period ends it."""

    def __init__(self, head):
        self.result = None

    def feed(self, data):
        for number in data:
            letter = bytes([number])
            if letter == END:
                self.result = "end"
            else:
                yield Chunk("high" if letter.isupper() else "low", letter, lambda new: new)

    def finish(self):
        pass


class MergedLetters(Letters):
    """The same with one channel, in chunks of any size."""

    def feed(self, data):
        if END in data:
            self.result = "end"
        yield Chunk("all", data.rstrip(END), lambda new: new)


def drive_retries(call, *answers, retry_timeout_s=30.0):
    """Run the retry loop with these results; return deliveries, result or error, and backoff times."""
    steps, got, waits, answers = request_with_retry(call, retry_timeout_s), [], [], list(answers)
    result = None
    try:
        while True:
            effect = steps.send(result)
            result = None
            if isinstance(effect, Sleep):
                waits.append(effect.seconds)
            elif isinstance(effect, SendRequest | ReadMore):
                result = answers.pop(0)
            else:
                got.append(effect)
    except StopIteration as end:
        assert not answers
        return got, end.value, waits
    except ClientError as error:
        return got, error, waits


HEAD, CONNECTION_LOST = ResponseHead(200, {}), ConnectionLost("reset", may_have_been_sent=True)
FIXED = ApiCall(REQUEST, Letters, is_deterministic=True)


def error_response(status, **headers):
    return ResponseHead(status, headers), b'{"error": {"code": "c", "message": "m", "param": "p"}}', b""


words = st.text("abcABC", min_size=1, max_size=12).map(str.encode)


@given(word=words, cuts=st.lists(st.integers(0, 12), max_size=4), sizes=st.lists(st.integers(1, 4), min_size=1))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("reader", [Letters, MergedLetters])
def test_interrupted_streams_are_delivered_exactly_once_and_in_order(reader, word, cuts, sizes):
    def pieces(data):
        at = number = 0
        while at < len(data):
            size = sizes[number % len(sizes)]
            yield data[at : at + size]
            at, number = at + size, number + 1

    answers = []
    for cut in cuts:
        answers += [HEAD, *pieces(word[:cut]), CONNECTION_LOST]
        sizes = sizes[1:] + sizes[:1]
    got, end, waits = drive_retries(
        ApiCall(REQUEST, reader, is_deterministic=True), *answers, HEAD, *pieces(word + END), b""
    )
    assert (b"".join(got), end, len(waits)) == (word, "end", len(cuts))


@given(word=words, other=words, cut=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_diverging_retry_is_an_error(word, other, cut):
    delivered = word[:cut]
    got, end, _ = drive_retries(
        ApiCall(REQUEST, MergedLetters, is_deterministic=True), HEAD, delivered, CONNECTION_LOST, HEAD, other + END, b""
    )
    if other.startswith(delivered):
        assert (b"".join(got), end) == (other, "end")
    else:
        assert isinstance(end, StreamDiverged)
        assert b"".join(got) == delivered


def test_a_nondeterministic_stream_is_not_retried_after_its_first_data():
    call = ApiCall(REQUEST, Letters)
    got, end, waits = drive_retries(call, HEAD, b"ab", CONNECTION_LOST)
    assert (got, waits) == ([b"a", b"b"], [])
    assert isinstance(end, StreamInterrupted)
    assert drive_retries(call, HEAD, CONNECTION_LOST, HEAD, b"ab.", b"")[:2] == ([b"a", b"b"], "end")
    assert isinstance(
        drive_retries(call, HEAD, b"ab", b"")[1], StreamInterrupted
    )  # the stream ends without its end event


def test_a_non_idempotent_request_is_retried_only_if_it_was_not_sent():
    call = ApiCall(REQUEST, Letters, is_idempotent=False)
    assert isinstance(drive_retries(call, CONNECTION_LOST)[1], ServerUnreachable)
    assert drive_retries(call, ConnectionLost("refused", may_have_been_sent=False), HEAD, b".", b"")[1] == "end"


def test_overload_errors_are_retried_after_retry_after():
    wait = {"retry-after-ms": "700"}
    got, end, waits = drive_retries(
        FIXED, *error_response(429, **wait), *error_response(503, **{"retry-after": "2"}), HEAD, b"a.", b""
    )
    assert (got, end) == ([b"a"], "end")
    assert 0.7 <= waits[0] <= 1.05
    assert 2 <= waits[1] <= 3
    _, end, waits = drive_retries(FIXED, *error_response(503, **{"retry-after": "60"}))
    assert isinstance(end, ServerBusy)
    assert (end.retry_after, waits) == (60, [])


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (500, ServerError)])
def test_other_errors_are_not_retried(status, kind):
    _, end, waits = drive_retries(FIXED, *error_response(status))
    assert isinstance(end, kind)
    assert (end.code, end.param, end.request_id, waits) == ("c", "p", "r", [])


def test_the_retry_budget_is_limited_and_reset_by_progress():
    lost = ConnectionLost("refused", may_have_been_sent=False)
    _, end, waits = drive_retries(FIXED, *[lost] * 99, retry_timeout_s=3.0)
    assert isinstance(end, ServerUnreachable)
    assert len(waits) > 3
    assert sum(waits) <= 3.0
    assert all(later > earlier for earlier, later in zip(waits, waits[2:], strict=False))
    answers = [part for size in range(1, 30) for part in (HEAD, b"x" * size, CONNECTION_LOST)]
    got, end, waits = drive_retries(FIXED, *answers, HEAD, b"x" * 30 + END, b"", retry_timeout_s=0.5)
    assert (len(got), end) == (30, "end")
    assert sum(waits) > 2
