import wave

import pytest
from playwright.sync_api import expect

from tests.chaos.conftest import report
from tests.integration.author_errors.cases import MODEL as FAILING_MODEL
from tests.studio.browser import KEEP_BLOBS, MANIFEST, QUESTION, TOY_MODELS, ErrorLog, open_browser, start_server

__all__ = ["report"]

expect.set_options(timeout=30_000)
LOCKED = ("--in-process", "--name", "bird")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One for all tests. Into its microphone a question is spoken, again and again, with a long silence after it."""
    spoken = tmp_path_factory.mktemp("microphone") / "spoken.wav"
    with wave.open(str(QUESTION)) as question, wave.open(str(spoken), "w") as out:
        out.setparams(question.getparams())
        silence = bytes(question.getframerate() * question.getsampwidth() * question.getnchannels())
        out.writeframes(silence + question.readframes(question.getnframes()) + silence * 60)
    with open_browser(f"--use-file-for-fake-audio-capture={spoken}") as started:
        yield started


@pytest.fixture(scope="session")
def started_server(browser, tmp_path_factory):
    """A server with real weights, and what its page showed from the first moment until it was ready."""
    with start_server(tmp_path_factory.mktemp("house"), MANIFEST) as server:
        context = browser.new_context()
        watch = ErrorLog(context)
        watch.allowed.add(503)  # what /ready says meanwhile
        page = context.new_page()
        page.goto(f"{server.url}/#/models")
        shown = []
        start, models = (
            page.get_by_role("region", name="Server startup"),
            page.get_by_role("heading", name="Models", exact=True),
        )
        while server.process.poll() is None and not models.is_visible():
            shown += start.all_text_contents()
            page.wait_for_timeout(100)
        context.close()
        yield server.wait_ready(), shown, watch.errors


@pytest.fixture
def studio_server(started_server):
    """The server."""
    return started_server[0]


@pytest.fixture(scope="session")
def locked(tmp_path_factory):
    """A server with the operator key "sesame", and a toy in its own process."""
    folder = tmp_path_factory.mktemp("locked")
    key = folder / "key"
    key.write_text("sesame")
    key.chmod(0o600)
    options = (*LOCKED, "--operator-key-file", str(key))
    with start_server(folder, f"{TOY_MODELS}/toy_models.py:Parrot", *options) as server:
        yield server.wait_ready()


@pytest.fixture(scope="session")
def failing_server(tmp_path_factory):
    """A server with a model that fails on demand, and that captures text."""
    flags = ("--name", "m", "--capture-text")
    with start_server(tmp_path_factory.mktemp("failing"), f"{FAILING_MODEL}:Failing", *flags) as server:
        yield server.wait_ready()


@pytest.fixture
def open_page(browser):
    """Opens pages as a person with a new browser would; at the end, none may have complained about anything. The
    statuses in `allow` are what a test provokes."""
    opened = []

    def open_(url, *, allow=(), **how):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
        context.add_init_script(KEEP_BLOBS)
        watch = ErrorLog(context)
        watch.allowed.update(allow)
        opened.append((context, watch))
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto(url)
        return page

    yield open_
    complaints = [payload for context, watch in opened for payload in watch.errors]
    for context, _ in opened:
        context.close()
    assert complaints == []
