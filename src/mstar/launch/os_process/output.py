"""Output of a child process: split into whole lines and forwarded to the log of this process."""

from __future__ import annotations

from mstar.server.telemetry import logs

MAX_LINE_BYTES = 64 << 10
"""Maximum length of a line; a longer one is split."""


class OutputForwarder:
    """Forwards the output of one child process."""

    def __init__(self, process: str, pid: int) -> None:
        self.process = process
        """Name in the log."""
        self.pid = pid
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Forward the complete lines of the output so far."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        self._write(lines)

    def finish(self) -> None:
        """Forward the last line, which can lack a line end."""
        lines, self._partial = [self._partial] if self._partial else [], b""
        self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            logs.write_output(self.process, self.pid, [line.decode(errors="replace") for line in lines])
