"""Documents and passages: what is read, how it is split, and that every offset points at its text."""

import json

import pytest

from mstar.errors import LoadError
from mstar.nn.retrieval.document_store import DocumentStore, write_passages
from mstar.nn.retrieval.documents import Document, TextPassage, html_text, read_documents, split_passages

SENTENCES = [f"Sentence number {number} has exactly eight words here." for number in range(10)]


def test_passages_are_whole_sentences_with_their_offsets():
    document = Document("a.txt", "A", "\n " + "  ".join(SENTENCES) + "\n")
    passages = [*split_passages(document, max_words=20)]
    assert [passage.text for passage in passages] == ["  ".join(SENTENCES[n : n + 2]) for n in range(0, 10, 2)]
    for passage in passages:
        assert document.text[passage.offset : passage.offset + len(passage.text)] == passage.text


def test_a_long_sentence_is_split_between_words():
    words = " ".join(f"word{number}" for number in range(50))
    passages = [*split_passages(Document("a", "A", words), max_words=20)]
    assert [len(passage.text.split()) for passage in passages] == [20, 20, 10]
    assert " ".join(passage.text for passage in passages) == words


def test_a_document_of_few_words_has_no_passage():
    assert not [*split_passages(Document("a", "A", "Page 7."))]


def test_html_without_its_navigation():
    title, text = html_text(
        "<html><head><title>The  page</title><style>p {}</style></head><body><nav>Home</nav>"
        "<h1>Cats</h1><p>They\n sleep &amp; hunt.</p><script>x()</script><p>Often.</p></body></html>"
    )
    assert title == "The page"
    assert text == "Cats\n\nThey sleep & hunt.\n\nOften."


def test_a_folder_is_read_in_order(tmp_path):
    (tmp_path / "b.md").write_text("# Dogs\nThey bark.")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.html").write_text("<title>Cats</title><p>They sleep.")
    (tmp_path / "c.py").write_text("x = 1")
    documents = [*read_documents(tmp_path)]
    assert [(one.source, one.title) for one in documents] == [("a/x.html", "Cats"), ("b.md", "Dogs")]
    assert documents[0].text == "They sleep."


def test_lines_of_json(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps(one) for one in ({"text": "a", "source": "s", "title": "t"}, {"text": "b"})))
    assert [*read_documents(file)] == [
        Document("s", "t", "a"),
        Document("texts.jsonl:2", "texts.jsonl:2", "b"),
    ]


@pytest.mark.parametrize("line", ["{", '{"source": "a"}', "[1]"])
def test_a_line_without_text_is_reported(tmp_path, line):
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "a"}\n' + line)
    with pytest.raises(LoadError, match="line 2: no JSON object with `text`"):
        [*read_documents(file)]


def test_a_folder_without_documents_is_refused(tmp_path):
    with pytest.raises(LoadError, match="has no documents"):
        read_documents(tmp_path)
    with pytest.raises(LoadError, match="does not exist"):
        read_documents(tmp_path / "none")


def test_the_store_returns_each_passage(tmp_path):
    passages = [TextPassage(f"{number}.txt", "Zoë", number, f"text {number} é\n") for number in range(5)]
    write_passages(tmp_path, passages)
    store = DocumentStore(tmp_path)
    assert len(store) == 5
    assert [store[number] for number in (4, 0, 2)] == [passages[number] for number in (4, 0, 2)]
    store.close()
