"""Renders screenshots of the studio for the documentation, with a real server, real weights and a real browser.

`python -m tools.render_studio pictures` writes docs/pictures/studio/*.png, and `python -m tools.render_studio capture`
the animation walking.gif. Both need the packages of the studio tests, and take some samples. Only the video and world
models are toys. Not a test.
"""

import base64
import io
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from tests.studio.browser import MANIFEST, PETER_WAV, QUESTION, ROOT, chat_body, open_browser, start_server

OUTPUT_DIR = ROOT / "docs" / "pictures" / "studio"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}
MAX_BYTES = 200_000
CROWD = 24
SUBJECTS = ("a lighthouse", "two foxes", "the sea", "an old clock", "a train", "a baker", "winter", "a violin")
FPS, GIF_WIDE = 10, 960
COLOURS = {Image.Quantize.MEDIANCUT: 95, Image.Quantize.MAXCOVERAGE: 160}
"""Those that most of a picture has, and those that few dots have."""
CAPTURE_S = 20.0
TIMEOUT_MS = 600_000

BOTTOM = "Math.max(...[...document.querySelectorAll('main .panel')].map(one => one.getBoundingClientRect().bottom))"
"""Where a page ends; below is nothing to see."""


class BackgroundRequests:
    """Clients who ask for stories, some of them aloud, until they are told to stop."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._is_over = threading.Event()
        self._clients: list[threading.Thread] = []

    def start(self, count: int, tokens: int = 300) -> None:
        """Start more clients; each sends its next request after the response."""
        for _ in range(count):
            client = threading.Thread(target=self._send_chat, args=(len(self._clients), tokens))
            self._clients.append(client)
            client.start()

    def stop(self) -> None:
        """All leave."""
        self._is_over.set()
        for client in self._clients:
            client.join()

    def _send_chat(self, number: int, tokens: int) -> None:
        text = f"Write a long story about {SUBJECTS[number % len(SUBJECTS)]}, part {number}."
        aloud = {"modalities": ["text", "audio"], "audio": {"format": "pcm16", "voice": "heart"}}
        body = chat_body(text, stream=True, max_tokens=tokens, **(aloud if number % 3 == 0 else {}))
        while not self._is_over.is_set():
            with (
                self._server.client() as client,
                client.stream("POST", "/v1/chat/completions", json=body, timeout=600) as answer,
            ):
                for _ in answer.iter_lines():
                    if self._is_over.is_set():
                        return


@contextmanager
def studio() -> Iterator[tuple[Any, Any]]:
    """A server that is ready, and a browser."""
    with tempfile.TemporaryDirectory() as folder, start_server(Path(folder), MANIFEST) as server:
        server.wait_ready()
        with open_browser() as browser:
            yield server, browser


# ---------------------------------------------------------------- pictures
def save_png(data: bytes, name: str) -> None:
    """Write a picture with as many colours as it may have to stay small."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    for colours in (256, 128, 64, 32):
        out = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if len(out.getvalue()) <= MAX_BYTES:
            break
    (OUTPUT_DIR / f"{name}.png").write_bytes(out.getvalue())
    print(f"{name}.png: {len(out.getvalue()) // 1000} kB, {colours} colours")


class Screenshots:
    """Opens pages and takes their pictures."""

    def __init__(self, server: Any, browser: Any) -> None:
        self.server, self._browser = server, browser
        self.page = self._opened(viewport=WIDE)

    def _opened(self, **how: Any) -> Any:
        page = self._browser.new_context(**how).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        return page

    def open(self, where: str) -> Any:
        self.page.goto(f"{self.server.url}/#/{where}")
        self.page.get_by_role("heading", level=1).wait_for(state="attached")
        return self.page

    def take(self, name: str, page: Any = None) -> None:
        page = page or self.page
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)
        size = page.viewport_size
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], page.evaluate(BOTTOM) + 20)}
        save_png(page.screenshot(clip=clip), name)

    def take_again(self, name: str, where: str, **how: Any) -> None:
        """The same page in another browser session."""
        page = self._opened(**how)
        page.goto(f"{self.server.url}/#/{where}")
        page.wait_for_timeout(3000)
        self.take(name, page)
        page.context.close()


def take_graph(album: Screenshots) -> None:
    crowd = BackgroundRequests(album.server)
    crowd.start(CROWD)
    try:
        page = album.open("graph/assistant")
        page.get_by_text(f"{CROWD * 2 // 3} requests").first.wait_for()
        page.wait_for_timeout(5000)
        album.take("graph")
        album.take_again("graph-dark", "graph/assistant", viewport=WIDE, color_scheme="dark")
        album.take_again("graph-phone", "graph/assistant", viewport=PHONE, device_scale_factor=2, has_touch=True)
    finally:
        crowd.stop()


def take_chat(album: Screenshots) -> None:
    page = album.open("play/chat/assistant")
    page.get_by_label("Temperature").fill("0")
    for text in ("What is the capital of France?", "Name three colours."):
        page.get_by_label("Message").fill(text)
        page.get_by_role("button", name="Send").click()
        page.get_by_role("button", name="Send").wait_for()
    page.get_by_label("Audio output").check()
    page.get_by_label("Attach").set_input_files(QUESTION)
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Response audio", exact=True).wait_for()
    album.take("chat")


def take_sound(album: Screenshots) -> None:
    page = album.open("play/speech/assistant")
    page.get_by_role("button", name="Speak", exact=True).click()
    page.get_by_role("link", name="Download WAV").wait_for()
    page.wait_for_timeout(3000)
    album.take("speech")
    page = album.open("play/transcription/assistant")
    page.get_by_label("Audio file").set_input_files(PETER_WAV)
    page.get_by_label("Output").select_option("times")
    page.get_by_role("button", name="Transcribe").click()
    page.get_by_role("cell").first.wait_for()
    album.take("transcription")
    page = album.open("play/conversation/assistant")
    page.get_by_label("Instructions").fill("You answer in one short sentence.")
    page.get_by_label("Send a file instead").set_input_files(QUESTION)
    page.get_by_text("Speaking", exact=True).wait_for()
    page.wait_for_timeout(2000)
    album.take("conversation")
    page.get_by_role("button", name="End", exact=True).click()


def take_sight(album: Screenshots) -> None:
    page = album.open("play/images/faces")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Generate", exact=True).last.click()
    page.get_by_role("img", name="image, finished").wait_for()
    album.take("images")
    page = album.open("play/video/film")
    page.get_by_label("Size").fill("320x180")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Play").click()
    page.wait_for_timeout(2000)
    album.take("video")
    page = album.open("play/robot/hopper")
    page.get_by_label("Requests per second").fill("10")
    page.get_by_role("button", name="Repeat for 10 s").click()
    page.wait_for_timeout(12_000)
    album.take("robot")
    take_world(album)


def take_world(album: Screenshots) -> None:
    page = album.open("play/world/dream")
    page.get_by_label("Name").fill("frames")
    page.get_by_role("button", name="Add").click()
    page.get_by_label("images of frames").set_input_files(str(ROOT / "docs" / "pictures" / "faces.png"))
    page.get_by_role("button", name="Create world").click()
    page.get_by_label("Action").fill("1 2 3 4 5 6 7")
    for _ in range(3):
        page.get_by_role("button", name="Step", exact=True).click()
        page.wait_for_timeout(500)
    page.get_by_role("button", name="Fork").click()
    page.wait_for_timeout(500)
    page.get_by_label("Action").fill("7 6 5 4 3 2 1")
    page.get_by_role("button", name="Step", exact=True).click()
    page.wait_for_timeout(500)
    page.get_by_role("region", name="World A").scroll_into_view_if_needed()
    album.take("world")


def take_requests(album: Screenshots) -> None:
    crowd = BackgroundRequests(album.server)
    with album.server.client() as client:
        aloud = {"modalities": ["text", "audio"], "audio": {"format": "wav", "voice": "heart"}}
        body = chat_body("Tell me about the sea in two sentences.", max_tokens=60, **aloud)
        alone = client.post("/v1/chat/completions", json=body).headers["X-Request-Id"]
        crowd.start(6)
        time.sleep(2)
        beside = client.post("/v1/chat/completions", json=body, timeout=300).headers["X-Request-Id"]
        crowd.stop()
    album.open("requests")
    album.take("requests")
    for name, where in {"timeline": alone, "compare": f"{alone}/{beside}"}.items():
        page = album.open(f"requests/{where}")
        page.get_by_role("application").first.wait_for()
        page.set_viewport_size(WIDE | {"height": 800 * len(where.split("/"))})
        page.wait_for_timeout(500)
        album.take(name)
    album.page.set_viewport_size(WIDE)


def take_overview(album: Screenshots) -> None:
    crowd = BackgroundRequests(album.server)
    try:
        for _ in range(4):  # the charts need some samples
            crowd.start(1, tokens=40)
            time.sleep(20)
        album.open("overview").wait_for_timeout(2000)
        album.take("overview")
    finally:
        crowd.stop()


def take_models(album: Screenshots) -> None:
    for name, where in {"models": "models", "plan": "models/assistant"}.items():
        album.open(where)
        album.page.wait_for_timeout(2000)
        album.take(name)


SHOTS: tuple[Callable[[Screenshots], None], ...] = (
    take_graph,
    take_chat,
    take_sound,
    take_sight,
    take_requests,
    take_overview,
    take_models,
)


def pictures(*names: str) -> None:
    """All of them, or those whose functions are named: `pictures graph chat`."""
    OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    with studio() as (server, browser):
        album = Screenshots(server, browser)
        for take in SHOTS:
            if not names or take.__name__.removeprefix("take_") in names:
                take(album)


# ---------------------------------------------------------------- a moving picture
class ScreenRecorder:
    """What a page shows, whenever that changes, while it rolls."""

    def __init__(self, page: Any) -> None:
        self.shots: list[tuple[float, bytes]] = []
        self._page, self._taken = page, list[int]()
        self._session = page.context.new_cdp_session(page)
        self._session.on("Page.screencastFrame", self._on_frame)
        how = {"format": "png", "maxWidth": WIDE["width"], "maxHeight": WIDE["height"]}
        self._session.send("Page.startScreencast", how)

    def _on_frame(self, frame: dict[str, Any]) -> None:
        self.shots.append((frame["metadata"]["timestamp"], base64.b64decode(frame["data"])))
        self._taken.append(frame["sessionId"])

    def record(self, seconds: float) -> None:
        """Wait. The next screenshot follows the acknowledgment of the last, which an event handler cannot send."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._page.wait_for_timeout(20)
            while self._taken:
                self._session.send("Page.screencastFrameAck", {"sessionId": self._taken.pop()})

    def stop(self) -> list[Image.Image]:
        """The frames at a fixed rate; unchanged ones are repeated."""
        self._session.send("Page.stopScreencast")
        begun, frames, at = self.shots[0][0], list[Image.Image](), 0
        for tick in range(int(CAPTURE_S * FPS)):
            while at + 1 < len(self.shots) and self.shots[at + 1][0] - begun <= tick / FPS:
                at += 1
            frames.append(_small(self.shots[at][1]))
        return frames


def _small(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    return picture.resize((GIF_WIDE, GIF_WIDE * picture.height // picture.width), Image.Resampling.LANCZOS)


def write_gif(frames: list[Image.Image], path: Path) -> None:
    """One palette for all, so that what stands still stays the same and costs nothing."""
    some = frames[:: max(1, len(frames) // 12)]
    sheet = Image.new("RGB", (some[0].width, some[0].height * len(some)))
    for at, frame in enumerate(some):
        sheet.paste(frame, (0, at * frame.height))
    palette, colours = Image.new("P", (1, 1)), list[int]()
    for method, count in COLOURS.items():
        colours += (sheet.quantize(count, method, dither=Image.Dither.NONE).getpalette() or [])[: 3 * count]
    palette.putpalette(colours)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=1000 // FPS, loop=0, disposal=1)
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(drawn)} frames")


def capture() -> None:
    """A question in the chat, answered aloud; then the graph, while a crowd asks."""
    with studio() as (server, browser):
        page = browser.new_context(viewport=WIDE).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"{server.url}/#/play/chat/assistant")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Audio output").check()
        crowd, film, begun = BackgroundRequests(server), ScreenRecorder(page), time.monotonic()
        for letter in "What is the capital of France?":
            page.get_by_label("Message").press_sequentially(letter)
            film.record(0.04)
        page.get_by_label("Message").press("Enter")
        while not page.get_by_label("Response audio", exact=True).is_visible():
            film.record(0.1)
        film.record(1.2)
        page.get_by_role("link", name="Graph").first.click()
        try:
            for _ in range(6):
                crowd.start(2)
                film.record(0.9)
            film.record(CAPTURE_S - time.monotonic() + begun)
            frames = film.stop()
        finally:
            crowd.stop()
    OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    write_gif(frames, OUTPUT_DIR / "walking.gif")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pictures", *chosen]:
            pictures(*chosen)
        case ["capture"]:
            capture()
        case _:
            sys.exit("python -m tools.render_studio pictures [NAME...], or python -m tools.render_studio capture")
