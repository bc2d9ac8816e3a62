"""Renders terminal screenshots for the documentation: real commands and their output, as SVG.

`python -m tools.render_terminal` runs each command in a pty with the models' real weights, and writes the screens to
docs/pictures/screens. It needs the packages that CI installs, and takes some minutes. Not a test.
"""

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
OUTPUT_DIR = ROOT / "docs" / "pictures" / "screens"
COLUMNS = 100
ROWS = 60
MSTAR = [sys.executable, "-m", "mstar.cli"]
MODEL = "smollm2"
TIMEOUT_S = 600.0
TOP_DELAY_S = 15.0
"""Seconds of load before `mstar top`, so that requests have finished and its rates are not empty."""


class Screen:
    """A command in a pty, and its output so far."""

    def __init__(self, *arguments: str, place: Path = ROOT) -> None:
        self.line = f"$ mstar {' '.join(arguments)}"
        self._written = bytearray()
        near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        self.process = subprocess.Popen(
            [*MSTAR, *arguments], stdin=far, stdout=far, stderr=far, env=environment, cwd=place, close_fds=True
        )
        os.close(far)
        self._reader = threading.Thread(target=self._read, args=(near,))
        self._reader.start()

    def _read(self, near: int) -> None:
        with os.fdopen(near, "rb", buffering=0) as terminal:
            try:
                while data := terminal.read(65536):
                    self._written += data
            except OSError:
                return  # the other end of the pty is closed

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.text):
                return match
            time.sleep(0.05)
        raise SystemExit(f"{self.line}: no match for {pattern!r} in the output:\n{self.text}")

    def end(self) -> None:
        self.process.wait(TIMEOUT_S)
        self._reader.join()

    def draw(self, name: str) -> None:
        """Write the command line and its output as SVG."""
        shown = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        shown.print(Text(self.line, style="bold"))
        shown.print(Text.from_ansi(on_screen(self.text)))
        svg = shown.export_svg(title=f"mstar {name}", theme=DIMMED_MONOKAI, unique_id=f"mstar-{name}")
        # The page must not fetch the external font that rich links to.
        svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
        svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)  # otherwise some viewers drop leading spaces
        OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
        (OUTPUT_DIR / f"{name}.svg").write_text(svg)
        print(f"drew {name}.svg")


def on_screen(text: str) -> str:
    """Final content of a terminal, with colors: interprets cursor movement and line erasure."""
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    row, column, color = 0, 0, ""
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", text):
        if part == "\n":
            row += 1
        elif part == "\r":
            column = 0
        elif part.endswith("A") and len(part) > 1:
            row = max(row - int(part[2:-1] or 1), 0)
        elif part == "\x1b[2K":
            cells = {at: cell for at, cell in cells.items() if at[0] != row}
        elif part.endswith("m") and len(part) > 1:
            color = "" if part in ("\x1b[0m", "\x1b[m") else color + part
        elif len(part) == 1:
            cells[row, column] = (color, part)
            column += 1
    last = max((at[0] for at in cells), default=0)
    return "\n".join(_line({at[1]: cell for at, cell in cells.items() if at[0] == row}) for row in range(last + 1))


def _line(cells: dict[int, tuple[str, str]]) -> str:
    letters = [cells.get(at, ("", " ")) for at in range(max(cells, default=-1) + 1)]
    return "".join(f"{color}{letter}\x1b[0m" if color else letter for color, letter in letters)


@contextmanager
def background_requests(url: str) -> Iterator[None]:
    """Clients that send requests continuously."""
    body = b'{"model": "%s", "max_tokens": 16, "messages": [{"role": "user", "content": "Tell me of the sea."}]}'
    request = Request(
        f"{url}/v1/chat/completions", body % MODEL.encode(), {"Content-Type": "application/json"}, method="POST"
    )
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            with urlopen(request, timeout=TIMEOUT_S) as response:
                response.read()

    clients = [threading.Thread(target=send) for _ in range(6)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        is_over.set()
        for client in clients:
            client.join()


def serve_and_top() -> None:
    served = Screen("serve", MODEL, "--port", "0")
    try:
        url = served.wait_for(r"http://[\d.]+:\d+")[0]
        served.wait_for(r"\bready\b")
        time.sleep(1)
        served.draw("serve")
        with background_requests(url):
            time.sleep(TOP_DELAY_S)
            watched = Screen("top", "--once", "--url", url)
            watched.end()
            watched.draw("top")
    finally:
        served.process.terminate()
        served.end()


def main() -> None:
    serve_and_top()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        shutil.copy(ROOT / "examples" / "question.wav", place)
        for name, *arguments in (("doctor",), ("run", "assistant", "question.wav")):
            screen = Screen(name, *arguments, place=place)
            screen.end()
            screen.draw(name)


if __name__ == "__main__":
    main()
