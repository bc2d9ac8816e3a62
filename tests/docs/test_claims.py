"""Claims of the documentation name their evidence, and the evidence exists.

A claim is a paragraph, list item or table row with "never", "always" or "only", or a figure with a unit. On the pages
under this rule it ends with an HTML comment, which readers do not see:

    <!-- shown by: tests/sim/test_scenarios.py::test_name, python -m bench NAME, mstar.module:NAME = 30 -->

The evidence is a test, a benchmark, or a constant of the code with its value. A block that shows its benchmark to the
reader needs no comment. `<!-- not a claim -->` marks a block that only matches by its words.
"""

import ast
import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.registry import BENCHES

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/cluster.md",
    "docs/concepts.md",
    "docs/gpu.md",
    "docs/huggingface.md",
    "docs/index.md",
    "docs/request-path.md",
    "docs/runtime.md",
    "docs/scaling.md",
    "docs/scheduling.md",
    "docs/security.md",
    "docs/api/actions.md",
    "docs/api/audio.md",
    "docs/api/chat.md",
    "docs/api/client.md",
    "docs/api/errors.md",
    "docs/api/generate.md",
    "docs/api/images.md",
    "docs/api/index.md",
    "docs/api/realtime.md",
    "docs/api/responses.md",
    "docs/api/worlds.md",
)
"""Pages where every claim needs evidence. Markers are resolved on all pages."""
UNITS = (
    r"%|µs|ms|s|seconds?|minutes?|hours?|times|x|kB|MB|GB|KiB|MiB|GiB|Hz|kHz|pixels|characters|items|jobs|strings|files"
)
CLAIM = re.compile(
    rf"\b(?:never|always|only|exactly[ -]once|byte-equal|bit-identical)\b"
    rf"|\b\d[\d.,]*(?: million)? ?(?:{UNITS})(?![\w/-])"
    rf"|\b(?:up to|at most|at least|within|after) (?:\d|two|three|four|five|one|half)",
    re.IGNORECASE,
)
MARKER = re.compile(r"<!-- shown by: (.+?) -->", re.DOTALL)
NOT_A_CLAIM = "<!-- not a claim -->"
VISIBLE_BENCH = re.compile(r"`python -m bench ([\w-]+)`")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def blocks(text: str) -> Iterator[str]:
    """The paragraphs, list items and table rows of a page."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        lines: list[str] = []
        for line in paragraph.splitlines():
            starts_block = re.match(r"\s*(?:[-*|#]|\d+\. )", line)
            if starts_block and lines:
                yield "\n".join(lines)
                lines = []
            lines.append(line)
        if lines:
            yield "\n".join(lines)


def is_claim(block: str) -> bool:
    """Whether a block says something that needs evidence."""
    if block.startswith(("#", "|---")):
        return False
    return CLAIM.search(COMMENT.sub("", block)) is not None


def evidence(block: str) -> list[str]:
    """What the comments of a block name, and the benchmarks that it shows."""
    named = [entry.strip() for marker in MARKER.findall(block) for entry in re.split(r",\s+", marker)]
    visible = COMMENT.sub("", block)
    return named + [f"python -m bench {name}" for name in VISIBLE_BENCH.findall(visible)]


@functools.cache
def function_names(path: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def constant(reference: str) -> Any:
    """The value of `module:NAME`, the default of `module:Class.field`, or a keyword of the JSON schema of a field."""
    module, _, path = reference.partition(":")
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        value = member(value, name)
    return value


def member(value: Any, name: str) -> Any:
    """One step of a reference. Raises AttributeError."""
    if isinstance(value, dict):
        return keyword(value, name)
    if dataclasses.is_dataclass(value):
        fields = {field.name: field.default for field in dataclasses.fields(value)}
    elif isinstance(value, type) and issubclass(value, msgspec.Struct):
        fields = {field.name: field.default for field in msgspec.structs.fields(value)}
    elif hasattr(value, "model_json_schema"):
        fields = value.model_json_schema()["properties"]
    else:
        fields = {}
    return fields[name] if name in fields else getattr(value, name)


def keyword(schema: dict[str, Any], name: str) -> Any:
    """A keyword of a JSON schema or of one of its alternatives."""
    for alternative in (schema, *schema.get("anyOf", ())):
        if name in alternative:
            return alternative[name]
    raise AttributeError(f"the schema has no {name}")


def problem(entry: str) -> str | None:
    """Why a piece of evidence does not exist, or None."""
    if bench := re.fullmatch(r"python -m bench ([\w-]+)", entry):
        return None if bench[1] in BENCHES else f"there is no bench {bench[1]}"
    if test := re.fullmatch(r"(tests/[\w/]+\.py)::(test_\w+)", entry):
        path = ROOT / test[1]
        if not path.is_file():
            return f"there is no {test[1]}"
        return None if test[2] in function_names(path) else f"{test[1]} has no {test[2]}"
    if named := re.fullmatch(r"(mstar[\w.]*:[\w.]+)(?: = (.+))?", entry):
        try:
            value = constant(named[1])
        except (ImportError, AttributeError) as error:
            return str(error)
        is_equal = named[2] is None or value == ast.literal_eval(named[2])
        return None if is_equal else f"{named[1]} is {value!r}, not {named[2]}"
    return "neither a test, a bench nor a constant"


def markdown_pages() -> list[str]:
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", markdown_pages())
def test_all_evidence_exists(page):
    entries = [entry for block in blocks((ROOT / page).read_text("utf-8")) for entry in evidence(block)]
    assert {entry: reason for entry in entries if (reason := problem(entry))} == {}


@pytest.mark.parametrize("page", markdown_pages())
def test_every_test_that_a_page_names_exists(page):
    named = set(re.findall(r"tests/[\w/]+\.py::test_\w+", (ROOT / page).read_text("utf-8")))
    assert {entry: reason for entry in named if (reason := problem(entry))} == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_claim_has_evidence(page):
    claims = [block for block in blocks((ROOT / page).read_text("utf-8")) if is_claim(block)]
    assert [block for block in claims if not evidence(block) and NOT_A_CLAIM not in block] == []


def test_claims_are_recognized():
    assert is_claim("Outputs are never mixed.")
    assert is_claim("| a host died | 1.4 s | on another host |")
    assert is_claim("- Up to 4096 of them.")
    assert not is_claim("A worker executes its part of the plan.")
    assert not is_claim("## Only a heading")
    assert not is_claim("Plain. <!-- shown by: never -->")


@pytest.mark.parametrize(
    "entry",
    [
        "tests/docs/test_claims.py::test_that_does_not_exist",
        "tests/docs/test_missing.py::test_claims_are_recognized",
        "python -m bench no-such-bench",
        "mstar.config:NoSuchName",
        "mstar.no_such_module:NAME",
        "mstar.wire.frame:KEY_BYTES = 31",
        "my own word",
    ],
)
def test_missing_evidence_is_found(entry):
    assert problem(entry)


def test_markers_are_in_use():
    entries = [
        entry for page in PAGES for block in blocks((ROOT / page).read_text("utf-8")) for entry in evidence(block)
    ]
    assert len(entries) >= 100
