"""Bans vague names, the project's retired vocabulary, and idioms that hide a meaning.

Three checks, all by reading files:

1. Vague words (manager, util, …) in class, file and folder names of `src`, and functions that begin with `get_`.
2. Retired words (`Door`, `tour`, `whereabouts`, `told`, …) as identifiers in Python and JavaScript, in code spans and
   code blocks of Markdown, and in deployment files. `RETIRED` maps each word to the field's word that replaced it.
3. Idioms ("so many", "somebody", …) in docstrings, comments and documentation, and in every string of `src`.

A word counts as a whole part of a name: `is_heard` contains "heard", `unheard_of` does too, `heardness` does not.
Run as `python -m tools.names` in the repository root.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

from tools.sources import TREES, Problem, read_sources, run

VAGUE = frozenset({"manager", "util", "helper", "info", "metadata", "base", "common", "misc", "impl"})
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

RETIRED_PARTS = {
    "buried": "dead",
    "bury": "mark_dead",
    "comings": "scaling_invariants",
    "crew": "replica group",
    "door": "server state",
    "ear": "audio encoder, VAD",
    "errand": "retry",
    "eye": "vision encoder",
    "guest": "worker request",
    "heard": "the value: event, message, audio",
    "keeper": "process actor",
    "latch": "circuit breaker",
    "mouth": "tts",
    "news": "event, activity, output",
    "said": "client input",
    "scribe": "asr",
    "stillborn": "failed start",
    "told": "the value: payload, header, snapshot",
    "tour": "walk run",
    "visit": "HTTP exchange",
    "whereabouts": "address book",
    "wish": "params",
}
"""Words that must not be part of an identifier, with the word to write instead. Plurals count."""

RETIRED_NAMES = {
    "Allowance": "RateLimit",
    "Answering": "RealtimeResponse",
    "AxesDecoder": "MRopeDecoder",
    "BySlack": "LeastSlackFirst",
    "Cargo": "ExportedState",
    "Chooser": "SamplerState",
    "EngineRoom": "EngineThread",
    "FrontCore": "FrontendCore",
    "Landings": "ReceiveBuffers",
    "Mstar-Pace": "Mstar-SLO",
    "Passage": "RequestContext",
    "Rehearsal": "CapacitySimulation",
    "Residents": "LruEviction",
    "Spelling": "IncrementalDetokenizer",
    "TakeNews": "ActivityQuery",
    "TakeStanding": "ModelStatusQuery",
    "TakeStock": "StatsQuery",
    "TakeTimeline": "SpansQuery",
    "Waiter": "ReadyCall",
    "asked": "the value: request, params",
    "bring_back": "restore",
    "found": "the value: matches, result",
    "go_back": "rollback",
    "goes_on": "multi_turn",
    "in_pieces": "chunked",
    "is_parked": "is_preempted",
    "patience_s": "request_timeout_s",
    "put_together": "merge_chunks",
    "unpark": "resume_preempted",
    "until_more": "interruptible",
}
"""Whole identifiers that must not come back."""

IDIOMS = (
    r"so (?:many|long|few|much)(?! (?:that|as))",
    r"so-manieth",
    r"somebody",
    r"nobody",
    r"whoever",
    r"who may",
    r"those who",
    r"wish(?:es)?",
    r"held against",
    r"comes? to (?:its|their) end",
    r"as many times as",
    r"is told (?:of|that|how|what)",
    r"by so much",
)
IDIOM = re.compile(r"\b(?:" + "|".join(IDIOMS) + r")\b", re.IGNORECASE)

IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]+`")
TEXTS = (("docs", "*.md"), (".", "README.md"), (".", "CONTRIBUTING.md"), (".", "AGENTS.md"))
OTHER_CODE = (("src/mstar/studio/static", "*.js"), ("deploy", "*.json"), ("deploy", "*.y*ml"), ("deploy", "*.toml"))
RECORDED = re.compile(r"<!-- figures: written by bench/page.py -->.*?<!-- end of figures -->", re.DOTALL)
"""The part of docs/performance.md that shows recorded runs, with the row names of their time."""
EXEMPT = frozenset({"tools/names.py", "tests/tools/test_names.py"})
"""Files that must spell the banned words."""
LIBRARY_PREFIXES = {("torch", "."), ("np", ".")}
"""Names behind these are not ours: `torch.eye`."""
FOREIGN = frozenset({"visit", "generic_visit", "NodeVisitor"})
"""Names of the standard library that contain a banned word."""


def words_of(name: str) -> list[str]:
    """The words of a CamelCase or snake_case name, in lower case."""
    return [word.lower() for word in WORD.findall(name)]


def vague_words(name: str) -> list[str]:
    """The vague words in a name; plurals count."""
    words = words_of(name)
    matches = [word for word in words if word in VAGUE or word.removesuffix("s") in VAGUE]
    return matches + [pair for pair in map("".join, pairwise(words)) if pair in VAGUE]


def retired_word(name: str) -> tuple[str, str] | None:
    """A retired word in an identifier and its replacement."""
    if name in RETIRED_NAMES:
        return name, RETIRED_NAMES[name]
    if name in FOREIGN or name.startswith("visit_"):
        return None
    for word in words_of(name):
        for part in (word, word.removesuffix("s"), word.removesuffix("es")):
            if part in RETIRED_PARTS:
                return part, RETIRED_PARTS[part]
    return None


def check(root: Path) -> list[Problem]:
    """Every banned name and idiom in the repository."""
    problems: list[Problem] = []
    for source in read_sources(root, ("src",)):
        problems += _vague_names(source.path, source.tree)
    for source in read_sources(root, TREES):
        if source.path not in EXEMPT:
            problems += _python_words(source.path, source.text)
    for path, text in _read(root, OTHER_CODE):
        if "/vendor/" not in path:
            problems += _identifiers(path, text, IDENTIFIER.finditer(text))
            problems += _idioms(path, text)
    for path, text in _read(root, TEXTS):
        code = [*FENCE.finditer(text), *CODE_SPAN.finditer(FENCE.sub(_blank, text))]
        for block in code:
            problems += _identifiers(path, text, IDENTIFIER.finditer(text, block.start(), block.end()))
        problems += _idioms(path, text)
    return problems


def _vague_names(path: str, tree: ast.Module) -> Iterator[Problem]:
    names = [(1, part) for part in PurePosixPath(path).with_suffix("").parts]
    names += [(node.lineno, node.name) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for line, name in names:
        for word in vague_words(name):
            yield Problem(path, line, f'the name {name} contains "{word}"', "name what it does or holds")
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and re.match(r"_{0,2}get_(?!_)", node.name):
            fix = "a noun for what it returns, or a verb for what it does (read, find, make)"
            yield Problem(path, node.lineno, f"the function {node.name} begins with get_", fix)


def _python_words(path: str, text: str) -> Iterator[Problem]:
    starts_statement = True
    before = ("", "")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and before not in LIBRARY_PREFIXES:
            yield from _retired(path, token.start[0], token.string)
        elif token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING
            and (starts_statement or path.startswith("src/"))  # elsewhere strings are data
        ):
            yield from _idioms(path, token.string, token.start[0])
        before = (before[1], token.string)
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            starts_statement = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def _identifiers(path: str, text: str, matches: Iterator[re.Match[str]]) -> Iterator[Problem]:
    for match in matches:
        yield from _retired(path, text.count("\n", 0, match.start()) + 1, match.group())


def _retired(path: str, line: int, name: str) -> Iterator[Problem]:
    retired = retired_word(name)
    if retired:
        yield Problem(path, line, f'the name {name} contains the retired word "{retired[0]}"', f"write {retired[1]}")


def _idioms(path: str, text: str, first_line: int = 1) -> Iterator[Problem]:
    for match in IDIOM.finditer(text):
        line = first_line + text.count("\n", 0, match.start())
        yield Problem(
            path, line, f'the idiom "{match.group()}"', "say it plainly: a maximum, a duration, the request, the client"
        )


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _read(root: Path, patterns: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    for folder, pattern in patterns:
        search = (root / folder).glob if folder == "." else (root / folder).rglob
        for file in sorted(search(pattern)):
            yield file.relative_to(root).as_posix(), RECORDED.sub(_blank, file.read_text("utf-8"))


if __name__ == "__main__":
    sys.exit(run("names", check))
