"""A browser on the studio, and servers for it to look at: what the tests, the pictures of the documentation and the
bench share.

The browser is the system's Chromium, without a window; Playwright only drives it, and fetches nothing. Which page
shows what is not known here.
"""

import base64
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import soundfile
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
TOY_MODELS = ROOT / "tests" / "server"
QUESTION = ROOT / "examples" / "question.wav"
PETER_WAV = ROOT / "tests" / "nn" / "peter.wav"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
START_TIMEOUT_S = 180.0

MANIFEST = f"""
[models.assistant]
model = "assistant"
[models.assistant.place]
lm = "llm"
tts = "tts"
vad = "asr"
asr = "asr"

[models.faces]
model = "faces"
[models.faces.place]
mapping = "image"
synthesis = "image"
upsampler = "image"

[models.hopper]
model = "hopper"
[models.hopper.place]
policy = "robot"

[models.film]
model = "{TOY_MODELS}/toy_image_models.py:VideoGenerator"
[models.film.place]
frames = "robot"

[models.dream]
model = "{TOY_MODELS}/toy_robot_models.py:MultiTurnWorldModel"
[models.dream.place]
encoder = "robot"
predictor = "robot"
"""
"""Real weights for all that there are some for here; toys film and dream."""


# ---------------------------------------------------------------- the browser
@contextmanager
def open_browser(*flags):
    """A Chromium without a window."""
    results = shutil.which("chromium")
    if results is None:
        raise RuntimeError("there is no Chromium\n  fix: apt-get install chromium fonts-dejavu-core")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=results, args=[*FLAGS, *flags])
        yield browser
        browser.close()


class ErrorLog:
    """What the pages of a context complained about: errors and warnings of the console (what the content security
    policy refuses is told there), and exceptions. Answers that a test asks for can be allowed by their status."""

    def __init__(self, context):
        self.allowed = set()
        self._messages = []
        context.on("console", self._on_message)
        context.on("weberror", lambda error: self._messages.append(f"exception: {error.error}"))

    def _on_message(self, message):
        if message.type in ("error", "warning"):
            self._messages.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    @property
    def errors(self):
        """All that was not allowed."""
        return [
            payload
            for payload in self._messages
            if not any(f"status of {status} " in payload for status in self.allowed)
        ]


def accessibility_violations(page):
    """Accessibility violations that axe reports for a page: rule, impact and place."""
    results = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for one in results
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


KEEP_BLOBS = """(() => {
    const make = URL.createObjectURL;
    window.kept = new Map();
    URL.createObjectURL = blob => { const url = make.call(URL, blob); window.kept.set(url, blob); return url; };
})()"""
"""Keeps what a page makes addresses for: its content security policy forbids fetching them, also for a test."""
READ_BYTES = """async element => {
    const bytes = new Uint8Array(await window.kept.get(element.src ?? element.href).arrayBuffer());
    let text = "";
    for (const one of bytes) text += String.fromCharCode(one);
    return btoa(text);
}"""


def read_bytes(locator):
    """The bytes of what a picture, a player or a link shows."""
    return base64.b64decode(locator.evaluate(READ_BYTES))


def read_audio(locator):
    """The samples of what a player plays, and their rate."""
    return soundfile.read(io.BytesIO(read_bytes(locator)))


def metric_value(place, name):
    """A figure of a call, by what it is called."""
    term = place.get_by_role("term").filter(has_text=re.compile(f"^{name}$"))
    return term.locator("xpath=following-sibling::dd")


def canvas_data(locator):
    """What a canvas shows now."""
    return locator.evaluate("one => one.toDataURL()")


# ---------------------------------------------------------------- servers
class Server:
    """`mstar serve` in a process of its own, which writes what it says to a file."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        self.url = self._wait_for_line("listening at").split()[-1]

    def _wait_for_line(self, what):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if line.startswith(what):
                    return line
            time.sleep(0.02)
        raise RuntimeError(f"the server did not say {what!r}, it said:\n{self.log.read_text()}")

    def wait_ready(self):
        """Wait until it is."""
        self._wait_for_line("ready")
        return self

    def client(self, key=""):
        """One that asks it without a browser."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60)

    def pid(self, worker):
        """The process of a worker."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                maps = (path.parent / "maps").read_text() if parent == self.process.pid else ""
            except OSError:  # it has ended meanwhile
                continue
            if re.search(rf"/{worker}\.\d+\.box", maps):  # the file that outlives it
                return int(path.parent.name)
        raise LookupError(f"no process of {worker}")

    def kill(self, worker):
        """End a worker as a fault would."""
        os.kill(self.pid(worker), signal.SIGKILL)


@contextmanager
def start_server(folder, what, *flags):
    """A server of a manifest's text, or of a model; it may not be ready yet."""
    if "\n" in str(what):
        (folder / "mstar.toml").write_text(what)
        what = folder / "mstar.toml"
    log = folder / "server.log"
    command = [sys.executable, "-m", "mstar.cli", "serve", str(what), "--port", "0", *flags]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        yield Server(process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def chat_body(text, model="assistant", **more):
    """The body of a chat in which the user said this."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0} | more


def wait_until_used(server, model, walk):
    """Wait until the server says that clients have used a walk: its statistics can be seconds old."""
    deadline = time.monotonic() + 20
    with server.client() as client:
        while time.monotonic() < deadline:
            walks = client.get(f"/v1/models/{model}/graph").json()["walks"]
            if any(one["name"] == walk and one["is_used"] for one in walks):
                return
            time.sleep(0.2)
    raise TimeoutError(f"the walk {walk} of {model} is not used")
