"""Documents and passages: reads a folder or a JSONL file, and splits each text into passages of whole sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from mstar.errors import LoadError, format_names

SUFFIXES = (".html", ".md", ".rst", ".txt")
"""Files of a folder that are read."""
MAX_PASSAGE_WORDS = 80
"""Words after which a passage ends: below the 256 tokens of MiniLM also for code, and short to read for a small LM."""
_MIN_PASSAGE_WORDS = 8
"""A shorter rest of a document, such as a page number, is no passage."""
_SENTENCE = re.compile(r"\S.*?(?:[.!?:;](?=\s)|\n\s*\n|\Z)", re.DOTALL)
_BLOCK_TAGS = frozenset(
    ("p", "div", "li", "dt", "dd", "tr", "pre", "table", "section", "br", "ul", "ol", "dl", "blockquote")
)
_BLOCK_TAGS |= {f"h{level}" for level in range(1, 7)}
_SKIPPED_TAGS = frozenset(("script", "style", "nav", "header", "footer", "title"))


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it is from."""

    source: str
    """Path relative to the folder, or a URL."""
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class TextPassage:
    """A part of a document."""

    source: str
    title: str
    offset: int
    """First character in the text of the document. In an HTML file, in the text that `html_text` returns."""
    text: str


def read_documents(path: Path) -> Iterator[Document]:
    """Documents of a folder, or of a JSONL file whose lines have `text`, and `source` and `title` if known."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise LoadError(f"{path} has no documents\n  fix: add files that end with {format_names(SUFFIXES)}")
        return (_read_file(file, str(file.relative_to(path))) for file in files)
    if not path.is_file():
        raise LoadError(f"{path} does not exist\n  fix: pass a folder, or a JSONL file")
    return _read_lines(path)


def _read_file(file: Path, source: str) -> Document:
    text = file.read_text("utf-8", errors="replace")
    if file.suffix == ".html":
        title, text = html_text(text)
        return Document(source, title or file.stem, text)
    first_line = next((line.strip("#= ").strip() for line in text.splitlines() if line.strip("#=* ")), "")
    return Document(source, first_line[:120] or file.stem, text)


def _read_lines(file: Path) -> Iterator[Document]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                text = fields["text"]
            except (ValueError, LookupError, TypeError) as error:
                problem = f"{file}, line {number}: no JSON object with `text`: {error}"
                raise LoadError(f'{problem}\n  fix: write lines such as {{"text": "…", "source": "a.txt"}}') from error
            source = str(fields.get("source", f"{file.name}:{number}"))
            yield Document(source, str(fields.get("title", source)), str(text))


def split_passages(document: Document, max_words: int = MAX_PASSAGE_WORDS) -> Iterator[TextPassage]:
    """Passages of whole sentences. A sentence that is longer than a passage is split between words."""
    start = end = words = 0
    for span_start, span_end, count in _spans(document.text, max_words):
        if words and words + count > max_words:
            yield _passage(document, start, end)
            start, words = span_start, 0
        start = start if words else span_start
        end, words = span_end, words + count
    if words >= _MIN_PASSAGE_WORDS:
        yield _passage(document, start, end)


def _spans(text: str, max_words: int) -> Iterator[tuple[int, int, int]]:
    """First character, character after the last, and number of words of each sentence, or part of a long one."""
    for sentence in _SENTENCE.finditer(text):
        words = [*re.finditer(r"\S+", text[sentence.start() : sentence.end()])]
        for first in range(0, len(words), max_words):
            part = words[first : first + max_words]
            yield sentence.start() + part[0].start(), sentence.start() + part[-1].end(), len(part)


def _passage(document: Document, start: int, end: int) -> TextPassage:
    return TextPassage(document.source, document.title, start, document.text[start:end])


def html_text(html: str) -> tuple[str, str]:
    """Title and text of an HTML page, without scripts, styles and navigation."""
    parser = _TextParser()
    parser.feed(html)
    parser.close()
    text = re.sub(r"\n\s*\n\s*", "\n\n", "".join(parser.parts)).strip()
    return " ".join("".join(parser.title).split()), text


class _TextParser(HTMLParser):
    """Collects the text of a page; the end of a block is an empty line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts = list[str]()
        self.title = list[str]()
        self._skipped = list[str]()
        """Open elements that are skipped, the outermost first."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        """Start skipping, or start a block."""
        if tag in _SKIPPED_TAGS:
            self._skipped.append(tag)
        elif tag in _BLOCK_TAGS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        """Stop skipping, or end a block."""
        if self._skipped and tag == self._skipped[-1]:
            self._skipped.pop()
        elif tag in _BLOCK_TAGS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        """Add text, with spaces as a browser shows them."""
        if not self._skipped:
            self.parts.append(re.sub(r"\s+", " ", data))
        elif self._skipped == ["title"]:
            self.title.append(data)
