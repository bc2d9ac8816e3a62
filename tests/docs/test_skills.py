"""skills/: coding agents find each skill by its description, and its commands and links exist."""

import re
from pathlib import Path

import pytest

from mstar.cli import main

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))


def test_there_is_a_skill():
    assert [path.parent.name for path in SKILLS] == ["add-a-model"]


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_a_skill_has_a_name_and_a_description(path):
    header = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", path.read_text("utf-8"))
    assert header is not None
    assert header[1] == path.parent.name
    assert "Use when" in header[2]


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_its_links_and_files_exist(path):
    text = path.read_text("utf-8")
    links = re.findall(r"\]\(([^)#]+)", text)
    files = [name for name in re.findall(r"`((?:src|docs|tests)/[\w./-]+)`", text) if "FAMILY" not in name]
    assert links
    assert files
    for file in [*(path.parent / link for link in links), *(ROOT / name for name in files)]:
        assert file.exists(), file


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_its_commands_exist(path, capsys):
    commands = set(re.findall(r"mstar ([a-z-]+)", "\n".join(re.findall(r"`+([^`]+)`+", path.read_text("utf-8")))))
    assert {"new", "check", "prove", "serve"} <= commands
    for command in sorted(commands):
        with pytest.raises(SystemExit) as exited:
            main([command, "--help"])
        assert exited.value.code == 0
        assert command in capsys.readouterr().out
