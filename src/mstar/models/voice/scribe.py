"""Scribe: Whisper as a component, the network, the spectra that it hears and the rules by which it writes.

It hears as much at once as its network does, thirty seconds. What is longer is cut and joined by `stitcher`.
It takes no prompt, and knows neither who speaks nor when each single word is said.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Bool, Float32, Int64, Layout, Tensor, op, ragged, rows, stacked
from mstar.asks import Segment, Sound
from mstar.models.voice.sounds import resampled
from mstar.models.voice.words import Words
from mstar.nn.sampling import Sampling
from mstar.nn.seq2seq import Seq2SeqLM
from mstar.nn.weights import Weights

if TYPE_CHECKING:
    from mstar.nn.heard import HeardKV
    from mstar.nn.store import PagedKV

RATE = 16_000
MOMENTS = 50
"""So many moments a second has."""
_SILENT = 2 * MOMENTS
"""So many follow a sound that is heard without the rest of the window. With fewer, words are written again."""


class Scribe(Seq2SeqLM):
    """A network that `network` loads, with its words.

    `extractor` makes spectra, as transformers does. With `window` a token sees so many before it, and what is older is
    forgotten.
    """

    def __init__(
        self,
        network: Callable[[], Any],
        words: Words,
        extractor: Callable[[], Any],
        *,
        pages: int = 1024,
        window: int | None = None,
    ) -> None:
        super().__init__(network, end=0, pages=pages, window=window)  # which token ends a text, the words say
        self.words = words
        self._load_extractor = extractor

    @functools.cached_property
    def _extract(self) -> Any:
        return self._load_extractor()

    def prepare(self) -> None:
        """Load the network, and what it hears and writes with."""
        super().prepare()
        _ = self._extract, self.words.spell(())

    @op
    def spectrum(self, sound: Sound) -> Float32[Tensor, "M F"]:
        """The spectrum of as much as is heard at once; silence follows what is shorter."""
        return self._spectrum(sound, self._extract.n_samples)

    @op
    def brief_spectrum(self, sound: Sound) -> Float32[Tensor, "M F"]:
        """The same with no more silence than tells that the sound is over, so that there is less to hear."""
        moments = len(sound.samples) * MOMENTS // sound.rate + _SILENT
        return self._spectrum(sound, min(moments * RATE // MOMENTS, self._extract.n_samples))

    def _spectrum(self, sound: Sound, length: int) -> Tensor:
        how = {"sampling_rate": RATE, "max_length": length, "return_tensors": "pt"}
        return self._extract(resampled(sound, RATE), **how).input_features[0]

    @op(batch=stacked)
    def language(self, code: str, kv: KV) -> Int64[Tensor, "1"]:
        """The token of the language that is spoken, or of the one with this code. Without languages, where to begin."""
        import torch

        marks, caches = self.words.marks, list(cast("Sequence[PagedKV]", rows(kv)))
        begin = torch.full((len(caches),), marks.begin)
        if not marks.languages:
            return begin[:, None]
        known = [[marks.languages[one]] if one else list(marks.languages.values()) for one in rows(code)]
        wishes = [Sampling(1, among=tuple((token, token + 1) for token in tokens)) for tokens in known]
        return self.decoder.next(begin, caches, wishes, Layout(len(caches), (1,) * len(caches)))[0]

    @op
    def task(self, language: Int64[Tensor, "1"], translates: bool) -> Int64[Tensor, "T"]:
        """What is read before the first word: the language, and what to do with it."""
        tasks = self.words.marks.tasks
        if not self.words.marks.languages:
            return language
        return language.new_tensor([int(language), tasks["translate" if translates else "transcribe"]])

    @op(batch=ragged("T"), in_pieces=True)
    def write(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens; the token that follows, of those that may."""
        import torch

        from mstar.models.voice.moments import ruled
        from mstar.nn.chooser import choose_tokens

        caches, marks = list(cast("Sequence[PagedKV]", rows(kv))), self.words.marks
        parts = tokens.split(list(layout.lengths))
        said = [[*one.chooser.history, *part.tolist()][marks.asked :] for one, part in zip(caches, parts, strict=True)]
        ends = [self._moments(one) for one in caches]
        ready = [row for row in range(len(caches)) if row not in layout.unfinished]
        wishes = rows(sampling)
        plain = [Sampling(wish.max_tokens) for wish in wishes]
        with torch.inference_mode():
            chosen, logits = self.decoder.next(tokens, caches, plain, layout)
            if ready:
                open_rows = logits[ready] if layout.unfinished else logits  # choosing them would copy all
                scores = ruled(open_rows, [said[row] for row in ready], [ends[row] for row in ready], marks)
                own, choosers = [wishes[row] for row in ready], [caches[row].chooser for row in ready]
                chosen[ready] = choose_tokens(scores, own, choosers)
        return chosen

    def _moments(self, cache: PagedKV) -> int | None:
        """How many moments the sound has that it heard, if not a whole window."""
        heard = cast("HeardKV", cache).heard.table.length
        return heard - _SILENT if heard < self._listener.positions else None

    @op(batch=stacked)
    def is_over(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the text."""
        return token[:, 0] == self.words.marks.end

    @op
    def segments(self, tokens: list[Int64[Tensor, "1"]], sound: Sound, start: float) -> list[Segment]:
        """What was said between the moments that were written down, of a sound that begins at `start`."""
        seconds = len(sound.samples) / sound.rate
        found = timed(tokens, Segment(start, start + seconds, ""), self.words.marks.zero)
        return [Segment(begin, end, self.words.spell(said)) for begin, end, said in found if self.words.spell(said)]


def timed(tokens: Sequence[Any], span: Segment, zero: int) -> list[tuple[float, float, list[int]]]:
    """Tokens between the moments among them, and when these are: inside of the span that was heard."""
    seconds = span.end - span.start
    found, begin, words = list[tuple[float, float, list[int]]](), 0.0, list[int]()
    for token in [*map(int, tokens), zero + round(seconds * MOMENTS)]:
        if token < zero:
            words.append(token)
            continue
        moment = min(max((token - zero) / MOMENTS, begin), seconds)
        if words:
            found.append((round(span.start + begin, 2), round(span.start + moment, 2), words))
        begin, words = moment, []
    return found


def read_scribe(weights: Weights, pages: int, window: int | None) -> Scribe:
    """The Whisper of a folder in the layout of its hub."""

    def extractor() -> Any:
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor.from_pretrained(weights.path())

    return Scribe(weights.network, Words(weights), extractor, pages=pages, window=window)
