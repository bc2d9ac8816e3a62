"""Output of child processes is forwarded in whole lines."""

from mstar.launch.os_process import output
from mstar.launch.os_process.output import OutputForwarder


def test_lines_are_forwarded_whole(monkeypatch):
    written = []
    monkeypatch.setattr(output.logs, "write_output", lambda process, pid, lines: written.append((process, pid, lines)))
    forwarder = OutputForwarder("t1", 7)
    for chunk in (b"one\ntw", b"o\n", b"thr", b"ee \xff"):
        forwarder.feed(chunk)
    assert written == [("t1", 7, ["one"]), ("t1", 7, ["two"])]
    forwarder.finish()
    forwarder.finish()
    assert written[2:] == [("t1", 7, ["three \ufffd"])]


def test_an_endless_line_is_split(monkeypatch):
    written = []
    monkeypatch.setattr(output.logs, "write_output", lambda process, pid, lines: written.extend(lines))
    OutputForwarder("t1", 7).feed(b"x" * (output.MAX_LINE_BYTES + 1))
    assert written == ["x" * (output.MAX_LINE_BYTES + 1)]
