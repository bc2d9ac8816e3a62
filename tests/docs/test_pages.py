"""The pages say what the code says: commands parse, and settings, metrics, codes, paths and messages exist."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.registry import BENCHES
from mstar.cli.main import _make_parser
from mstar.cli.serving.manifest import Manifest
from mstar.requests import ChatRequest, Message
from mstar.server.admin.health import _MetricsCollector
from mstar.server.app import ENDPOINTS
from mstar.server.state import ServerState
from mstar.server.telemetry import process_metrics
from mstar.walk.load import load_model
from tools.settings_page import render as render_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted({ROOT / "README.md", *DOCS.rglob("*.md")} - {*DOCS.glob("decisions/*"), *DOCS.glob("pictures/*")})
SOURCES = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *languages: str) -> Iterator[str]:
    return (block for language, block in FENCE.findall(path.read_text("utf-8")) if language in languages)


def commands(path: Path) -> Iterator[str]:
    """Every command line of ours on a page: whole lines of a shell, and what stands in the midst of a sentence."""
    for block in blocks(path, "bash", "ini", "toml"):
        lines = block.replace("\\\n", " ").splitlines()
        results = (re.search(r"(?:^|[=/] ?|bin/)(mstar .*)", line) for line in lines)
        yield from (line[1] for line in results if line)
    yield from re.findall(r"(?<!`)`(mstar [^`\n]+)`(?!`)", FENCE.sub("", path.read_text("utf-8")))


# ---------------------------------------------------------------- commands and code
@pytest.mark.parametrize("path", PAGES, ids=relative_name)
def test_every_command_is_one(path, capsys):
    parser = _make_parser()
    known = parser._subparsers._group_actions[0].choices
    for line in commands(path):
        words = shlex.split(line, comments=True)[1:]
        if len(words) == 1:
            assert words[0] in known, line
            continue
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{relative_name(path)}: {line}\n{capsys.readouterr().err}")


def test_every_command_is_reported():
    known = _make_parser()._subparsers._group_actions[0].choices
    assert {name for name in known if f"`mstar {name}" not in text("cli.md")} == set()


def test_commands_are_found():
    assert "mstar serve assistant" in commands(ROOT / "README.md")
    assert "mstar serve mstar.toml" in commands(DOCS / "deploy.md")


def test_every_bench_is_documented():
    named_benches = {
        path: {*re.findall(r"python -m bench ([a-z][a-z0-9_-]*)", path.read_text("utf-8"))} for path in PAGES
    }
    known = {*BENCHES, "all", "page"}
    assert {str(path.relative_to(ROOT)): names - known for path, names in named_benches.items() if names - known} == {}
    assert named_benches[DOCS / "performance.md"] >= BENCHES.keys()


def test_every_extra_is_one():
    there = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    pages = "".join(path.read_text("utf-8") for path in PAGES)
    payload = {
        extra for params in re.findall(r"(?:mstar-serve|-e '\.)\[([\w,]+)\]", pages) for extra in params.split(",")
    }
    assert payload
    assert payload <= there.keys()


def test_python_is_python():
    assert [ast.parse(block, str(path)) for path in PAGES for block in blocks(path, "python")]


def test_the_whole_model_runs(tmp_path):
    (tmp_path / "backwards.py").write_text(next(blocks(DOCS / "authoring.md", "python")))
    outcome = load_model(str(tmp_path / "backwards.py")).run(ChatRequest((Message("user", ("home going am I",)),)))
    assert [one.value for one in outcome.emissions] == ["I ", "am ", "going ", "home "]


# ---------------------------------------------------------------- tables that code has too
def test_every_setting_is_reported():
    assert text("settings.md") == render_settings(), "fix: python -m tools.settings_page"


def test_the_manifest_is_one(tmp_path):
    (tmp_path / "mstar.toml").write_text(next(blocks(DOCS / "deploy.md", "toml")))
    assert Manifest(tmp_path / "mstar.toml").models.keys() == {"chat", "voice"}


def test_every_metric_is_reported():
    rows = re.findall(r"^\| (`mstar_[^|]+) \|", text("operate.md"), re.MULTILINE)
    payload = {name for row in rows for name in re.findall(r"`(mstar_\w+)`", row)}
    counted = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in _MetricsCollector(ServerState({})).collect()
        if family.name.startswith("mstar_")
    }
    counted |= set(re.findall(r"`(mstar_\w+)`", process_metrics.__doc__ or ""))
    counted |= {name for name, _ in process_metrics.PROCESS_METRICS.values()}
    assert payload == counted


def test_every_code_is_reported():
    codes = {
        call.args[at].value
        for path in (ROOT / "src" / "mstar").glob("[sm]e*/**/*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("ApiError", "MediaError")
        for at in [call.func.id == "ApiError"]
        if isinstance(call.args[at], ast.Constant)
    }
    payload = {
        code for row in re.findall(r"^\| (`[^|]+) \|", text("api/errors.md"), re.MULTILINE) for code in backticked(row)
    }
    assert len(codes) > 20
    assert codes <= payload
    assert {code for code in payload if code.islower() and "-" not in code and f'"{code}"' not in SOURCES} == set()


def backticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_path_is_reported():
    pages = "".join(path.read_text("utf-8") for path in (*DOCS.glob("api/*.md"), DOCS / "operate.md"))
    paths = {re.sub(r"\{(\w+):path\}", r"{\1}", one.path) for one in ENDPOINTS}
    assert {path for path in paths if not re.search(re.escape(path) + r"[`? ]", pages)} == set()
    payload = set(re.findall(r"(?:GET|POST|DELETE|WS) (/[\w/{}]*(?:\.json)?)", pages))
    assert payload <= paths


def test_every_decision_is_listed():
    notes = sorted((DOCS / "decisions").glob("0*.md"))[1:]  # the first one is the template
    titles = [note.read_text("utf-8").splitlines()[0] for note in notes]
    rows = [f"- [{title[2:6]}](decisions/{note.name}): {title[8:]}" for note, title in zip(notes, titles, strict=True)]
    assert [line for line in text("decisions.md").splitlines() if line.startswith("- ")] == rows


def test_a_word_is_in_the_glossary_once():
    cells = re.findall(r"^\| (\*\*[^|]+) \|", text("glossary.md"), re.MULTILINE)
    words = [word for cell in cells for word in re.findall(r"\*\*(.+?)\*\*", cell)]
    assert "Walk" in words
    assert {word for word in words if words.count(word) > 1} == set()


def test_messages_are_those_of_the_code():
    cells = re.findall(r"^\| ([^|]+) \|", text("troubleshoot.md"), re.MULTILINE)
    quoted = [part.strip() for cell in cells for tick in backticked(cell) for part in tick.split("…") if part.strip()]
    assert quoted
    assert [part for part in quoted if part not in SOURCES] == []


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []
