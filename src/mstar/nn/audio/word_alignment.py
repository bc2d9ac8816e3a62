"""Word alignment: which phonemes belong to which word of a text, and when they are spoken.

The package hibari-tts normalizes a text ("Dr." is read "Doctor"), splits it into tokens and converts these to phonemes.
Here the tokens are followed back to the words of the text that was given:

1. A token's phonemes are a range of the sentence's phonemes, and its text is a range of the normalized sentence.
2. Words of the sentence that normalization left alone are matched with themselves. Between two matches the remaining
   words are one item, because how their reading is divided among them is unknown: `7:30 pm`.
3. A speech network predicts the frames of each phoneme; their sums are the times.

Punctuation and spaces have frames of their own, the pauses. They belong to no word.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from mstar.requests import WordTimestamp

_PAUSES = frozenset(' ;:,.!?—…"“”()')
"""Phoneme characters that are not sounds of a word."""
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class WordPhonemes:
    """A word and its range of phonemes."""

    text_start: int
    text_end: int
    first: int
    """Index of its first phoneme, in a phrase."""
    last: int
    """Index after its last phoneme."""


@dataclass(frozen=True, slots=True)
class AlignedPhrase:
    """Phonemes that a network synthesizes at once, with the words that they complete."""

    phonemes: str
    words: tuple[WordPhonemes, ...]

    def parts(self, texts: Sequence[str]) -> Iterator[AlignedPhrase]:
        """These parts of it, in order. A word that is split belongs to the part with its end."""
        last = 0
        for text in texts:
            first = self.phonemes.index(text, last)
            last = first + len(text)
            words = (
                WordPhonemes(word.text_start, word.text_end, max(0, word.first - first), word.last - first)
                for word in self.words
                if first < word.last <= last
            )
            yield AlignedPhrase(text, tuple(words))

    def extend_last_word(self, text_end: int, new_end: int) -> AlignedPhrase:
        """The phrase with another end of the word that ends at `text_end`, if there is one."""
        if not self.words or self.words[-1].text_end != text_end:
            return self
        return AlignedPhrase(self.phonemes, (*self.words[:-1], replace(self.words[-1], text_end=new_end)))

    def in_vocabulary(self, vocabulary: Container[str]) -> AlignedPhrase:
        """The phrase without the characters that are no phonemes of a network."""
        counts = [0]
        for phoneme in self.phonemes:
            counts.append(counts[-1] + (phoneme in vocabulary))
        words = (
            WordPhonemes(word.text_start, word.text_end, counts[word.first], counts[word.last]) for word in self.words
        )
        known = "".join(phoneme for phoneme in self.phonemes if phoneme in vocabulary)
        return AlignedPhrase(known, tuple(word for word in words if word.first < word.last))


def phonemize(synthesizer: Any, text: str, text_start: int = 0) -> list[AlignedPhrase]:
    """Phrases of a text that begins at `text_start` of the spoken text: what `Hibari.phonemize` returns, with words."""
    phrases, position = list[AlignedPhrase](), 0
    for sentence in synthesizer.split_sentences(text):
        start = text.index(sentence, position)
        position = start + len(sentence)
        whole = _align_sentence(synthesizer.g2p, sentence, text_start + start)
        if (quotes := _WORD.match(text, position)) is not None:  # closing ones are not part of a sentence
            whole = whole.extend_last_word(text_start + position, text_start + quotes.end())
        if whole.phonemes:
            phrases += whole.parts(type(synthesizer).phonemize(_Phonemized, whole.phonemes))
    return phrases


class _Phonemized:
    """Stands in for a synthesizer whose input is one sentence of phonemes: its `phonemize` only splits long ones."""

    @staticmethod
    def split_sentences(phonemes: str) -> list[str]:
        return [phonemes]

    @staticmethod
    def g2p(phonemes: str) -> str:
        return phonemes


def _align_sentence(g2p: Any, sentence: str, text_start: int) -> AlignedPhrase:
    """Phonemes and words of one sentence: `G2P.__call__` with ranges."""
    from hibari.g2p.normalize import normalize

    normalized = normalize(sentence)
    reading, sounds, position = "", list[tuple[int, int, int]](), 0
    for token in g2p.phonemize_tokens(g2p.tokenize(normalized)):
        start = max(position, normalized.find(token.text, position))
        position = start + len(token.text)
        phonemes = g2p.unk if token.phonemes is None else token.phonemes
        indices = [len(reading) + index for index, phoneme in enumerate(phonemes) if phoneme not in _PAUSES]
        if indices:
            sounds.append((start, indices[0], indices[-1] + 1))
        reading += phonemes + (" " if token.whitespace else "")
    offset = len(reading) - len(reading.lstrip())
    words = list[WordPhonemes]()
    for (word_start, word_end), (read_start, read_end) in _match_words(sentence, normalized):
        ranges = [(first, last) for start, first, last in sounds if read_start <= start < read_end]
        if ranges:
            first, last = ranges[0][0] - offset, ranges[-1][1] - offset
            words.append(WordPhonemes(text_start + word_start, text_start + word_end, first, last))
    return AlignedPhrase(reading.strip(), tuple(words))


_Span: TypeAlias = tuple[int, int]


def _match_words(sentence: str, normalized: str) -> Iterator[tuple[_Span, _Span]]:
    """Ranges of characters in both texts that have the same words, or of which one is the reading of the other."""
    written, read = (list(_WORD.finditer(text)) for text in (sentence, normalized))
    keys = [[match.group().replace("’", "'") for match in matches] for matches in (written, read)]
    for tag, i, i_end, j, j_end in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if tag == "equal":
            for ours, theirs in zip(written[i:i_end], read[j:j_end], strict=True):
                yield ours.span(), theirs.span()
        elif tag == "replace":
            yield (written[i].start(), written[i_end - 1].end()), (read[j].start(), read[j_end - 1].end())


def word_timestamps(
    phrase: AlignedPhrase, frames: Sequence[float], frame_s: float, text: str, text_start: int, start: float
) -> list[WordTimestamp]:
    """Times of the words of a phrase whose audio begins at `start` seconds.

    `frames` are those of each phoneme, with one padding element before and one after them. `text` begins at
    `text_start` of the spoken text.
    """
    ends = [frames[0]]
    for count in frames[1:]:
        ends.append(ends[-1] + count)
    return [
        WordTimestamp(
            text[word.text_start - text_start : word.text_end - text_start],
            round(start + frame_s * ends[word.first], 3),
            round(start + frame_s * ends[word.last], 3),
            word.text_start,
            word.text_end,
        )
        for word in phrase.words
    ]
