"""When a request is asked again, and what its caller gets then: without a network, under every way of cutting."""

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
    """Reads an answer whose capitals are one lane and whose other letters another; a full stop is its end."""

    def __init__(self, head):
        self.result = None

    def feed(self, data):
        for number in data:
            letter = bytes([number])
            if letter == END:
                self.result = "end"
            else:
                yield Chunk("high" if letter.isupper() else "low", letter, lambda fresh: fresh)

    def finish(self):
        pass


class MergedLetters(Letters):
    """The same for one lane, in pieces of whatever size comes."""

    def feed(self, data):
        if END in data:
            self.result = "end"
        yield Chunk("all", data.rstrip(END), lambda fresh: fresh)


def drive_retries(call, *answers, patience_s=30.0):
    """What the caller gets, and how it ends, if these come one after the other; and how long it was waited."""
    going, got, waits, answers = request_with_retry(call, patience_s), [], [], list(answers)
    told = None
    try:
        while True:
            act = going.send(told)
            told = None
            if isinstance(act, Sleep):
                waits.append(act.seconds)
            elif isinstance(act, SendRequest | ReadMore):
                told = answers.pop(0)
            else:
                got.append(act)
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
def test_whatever_is_cut_is_delivered_once_and_in_order(reader, word, cuts, sizes):
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
def test_what_is_not_the_same_is_never_passed_off_as_it(word, other, cut):
    had = word[:cut]
    got, end, _ = drive_retries(
        ApiCall(REQUEST, MergedLetters, is_deterministic=True), HEAD, had, CONNECTION_LOST, HEAD, other + END, b""
    )
    if other.startswith(had):
        assert (b"".join(got), end) == (other, "end")
    else:
        assert isinstance(end, StreamDiverged)
        assert b"".join(got) == had


def test_a_stream_that_may_differ_is_not_asked_again_once_it_has_begun():
    call = ApiCall(REQUEST, Letters)
    got, end, waits = drive_retries(call, HEAD, b"ab", CONNECTION_LOST)
    assert (got, waits) == ([b"a", b"b"], [])
    assert isinstance(end, StreamInterrupted)
    assert drive_retries(call, HEAD, CONNECTION_LOST, HEAD, b"ab.", b"")[:2] == ([b"a", b"b"], "end")
    assert isinstance(drive_retries(call, HEAD, b"ab", b"")[1], StreamInterrupted)  # it ends, and says no end


def test_what_must_not_be_done_twice_is_asked_again_only_if_it_was_not_heard():
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
def test_other_refusals_are_final(status, kind):
    _, end, waits = drive_retries(FIXED, *error_response(status))
    assert isinstance(end, kind)
    assert (end.code, end.param, end.request_id, waits) == ("c", "p", "r", [])


def test_the_retry_budget_ends_and_is_renewed_by_progress():
    lost = ConnectionLost("refused", may_have_been_sent=False)
    _, end, waits = drive_retries(FIXED, *[lost] * 99, patience_s=3.0)
    assert isinstance(end, ServerUnreachable)
    assert len(waits) > 3
    assert sum(waits) <= 3.0
    assert all(later > earlier for earlier, later in zip(waits, waits[2:], strict=False))
    answers = [part for size in range(1, 30) for part in (HEAD, b"x" * size, CONNECTION_LOST)]
    got, end, waits = drive_retries(FIXED, *answers, HEAD, b"x" * 30 + END, b"", patience_s=0.5)
    assert (len(got), end) == (30, "end")
    assert sum(waits) > 2
