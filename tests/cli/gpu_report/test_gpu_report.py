"""`mstar gpu-report`: rehearsed on the pretend GPU; the JSON file has the documented schema."""

import json
import subprocess
import sys

import jsonschema
import msgspec
import pytest

from mstar.cli.gpu_report import command, decoders
from mstar.cli.gpu_report.families import _count_equal
from mstar.cli.gpu_report.markdown import render_report
from mstar.cli.gpu_report.records import Report, Row, worst
from mstar.cli.gpu_report.sections import SECTIONS, SectionOptions, Subject
from mstar.cli.main import main

SCHEMA = msgspec.json.schema(Report)


def report_of(folder):
    """The JSON file of a report, which has the schema."""
    report = json.loads((folder / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    return report


def rows_of(report, name):
    (section,) = [section for section in report["sections"] if section["name"] == name]
    return {row["what"]: row for row in section["rows"]}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_rehearsal_of_all_sections(tmp_path):
    arguments = ["gpu-report", "--device", "pretend", "--models", "smollm2,hopper,sd3", "-o", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "mstar.cli", *arguments], capture_output=True, text=True, check=False)
    report = report_of(tmp_path)
    assert [section["name"] for section in report["sections"]] == [*SECTIONS]
    states = {section["name"]: section["state"] for section in report["sections"]}
    assert {name for name, state in states.items() if state != "ok"} <= {"machine"}, (
        tmp_path / "report.md"
    ).read_text()
    assert done.returncode == (1 if states["machine"] == "failed" else 0)
    assert report["is_pretend"]
    page = (tmp_path / "report.md").read_text()
    assert "nothing on this page was run on a GPU" in page
    assert "| llama | ok | 1 of the tokens are equal |" in page
    assert "decoders: Do captured decode steps" in done.stdout
    decoders = rows_of(report, "decoders")
    assert len(decoders) == 7
    assert {row["value"] for row in decoders.values()} == {1.0}
    assert all("captured graphs" in row["note"] and row["note"][0] != "0" for row in decoders.values()), decoders
    families = rows_of(report, "families")
    assert families["smollm2"]["value"] == 1.0
    assert families["sd3"]["state"] == families["hopper"]["state"] == "skipped"
    assert rows_of(report, "ranks")["two ranks, gloo"]["value"] == 1.0
    assert rows_of(report, "engine")["own decoder, 4 requests"]["value"] > 0
    assert rows_of(report, "server")["4 clients"]["value"] > 0
    assert rows_of(report, "transfers")["device to another worker of this host"]["unit"] == "GB/s"


@pytest.mark.slow
def test_a_rehearsal_of_some_sections(tmp_path):
    arguments = ["gpu-report", "--device", "pretend", "--sections", "machine,families", "--models", "hopper,sd3"]
    status = main([*arguments, "-o", str(tmp_path)])
    report = report_of(tmp_path)
    machine, families = report["sections"]
    assert (machine["error"], families["error"], families["state"]) == ("", "", "skipped")
    assert status == (1 if machine["state"] == "failed" else 0)
    assert rows_of(report, "machine")["torch"]["state"] == "ok"
    assert {row["state"] for row in families["rows"]} == {"skipped"}


@pytest.mark.slow
def test_a_decoder_is_compared(monkeypatch):
    llama = decoders.networks()["llama"]
    monkeypatch.setattr(decoders, "networks", lambda: {"llama": llama})
    (row,) = decoders.rows(SectionOptions("pretend", (), ""))
    assert (row.what, row.state, row.value) == ("llama", "ok", 1.0)
    assert "captured graphs" in row.note
    assert row.note[0] != "0"


DYING = """
import os
from mstar.cli.gpu_report.records import Row
def rows(options):
    yield Row(what="before", value=1.5, unit="GB/s")
    print("an illegal memory access", flush=True)
    os.abort()
"""


@pytest.mark.slow
def test_a_section_that_dies_keeps_its_rows_and_the_others_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "dying_section.py").write_text(DYING)
    (tmp_path / "sitecustomize.py").write_text(
        "from mstar.cli.gpu_report import sections\n"
        "sections.SECTIONS['dying'] = sections.Subject('Does it die?', 'dying_section')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(command.SECTIONS, "dying", Subject("Does it die?", "dying_section"))
    arguments = ["gpu-report", "--device", "pretend", "--sections", "dying,transfers", "-o", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert "failed: `dying`" in capsys.readouterr().err
    report = report_of(tmp_path / "out")
    dying, transfers = report["sections"]
    assert (dying["state"], transfers["state"]) == ("failed", "ok")
    assert [row["what"] for row in dying["rows"]] == ["before"]
    assert "exited with status -6" in dying["error"]
    assert "an illegal memory access" in dying["error"]


def test_a_section_that_takes_too_long_is_ended(tmp_path):
    arguments = ["gpu-report", "--device", "pretend", "--sections", "decoders", "--timeout-s", "0.1"]
    assert main([*arguments, "-o", str(tmp_path)]) == 1
    assert "took longer than 0.1 s" in report_of(tmp_path)["sections"][0]["error"]


def test_without_a_gpu_the_fix_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "count_gpus", lambda: 0)
    assert main(["gpu-report", "-o", str(tmp_path)]) == 1
    assert "no NVIDIA GPU is visible\n  fix: " in capsys.readouterr().err
    assert main(["gpu-report", "--sections", "all", "-o", str(tmp_path)]) == 1
    assert "no sections `all`\n  fix: use `machine`" in capsys.readouterr().err


def test_states_and_cells():
    assert worst(["ok", "skipped"]) == "ok"
    assert worst(["skipped"]) == worst([]) == "skipped"
    assert worst(["ok", "failed"]) == "failed"
    row = Row(what="a|b", state="failed", note="one\ntwo")
    section = command.Section(name="x", question="?", state="failed", seconds=1.0, rows=[row], error="```")
    report = Report(format=1, created="now", mstar="1", device="cuda", is_pretend=False, sections=[section])
    page = render_report(report)
    assert "| a\\|b | failed |  | one two |" in page
    assert "```text\n'''\n```" in page
    assert "rehearsal" not in page


def test_values_are_compared_one_by_one():
    import numpy as np

    tokens, floats = np.array([1, 2, 3]), np.array([0.5, -1.0])
    assert _count_equal([tokens, floats, "a"], [tokens, floats, "a"]) == (6, 6)
    assert _count_equal([np.array([1, 2, 4]), floats + 0.01], [tokens, floats, "a"]) == (4, 6)
    assert _count_equal([np.array([1, 2])], [tokens]) == (0, 3)
    assert _count_equal([floats + 0.1], [floats]) == (0, 2)
