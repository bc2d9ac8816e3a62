"""Orpheus: says English text in one of eight voices, with laughs and sighs where the text has `<laugh>` or `<sigh>`.

A Llama goes on with the text in codes, seven for each frame of sound, and SNAC turns them into sound as they are
written: it begins after 28 codes and goes on every seven. In what it differs from the published decoder is told by
`mstar.models.orpheus.snac`. Voices are not cloned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mstar import Audio, Model, Stream, loop, walk, windows
from mstar.errors import Unsupported, format_names
from mstar.models.orpheus.language_model import LanguageModel
from mstar.models.orpheus.snac import CODES_PER_FRAME, Snac
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest

VOICES = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
SAMPLE_RATE_HZ = 24_000
DEFAULT_SAMPLING = Sampling(max_tokens=1200, temperature=0.6, top_p=0.8, repetition_penalty=1.3)
"""How its authors choose codes."""


class Orpheus(Model):
    """A Llama writes SNAC codes; SNAC turns each window of them into sound.

    Weights are folders in the layout of their hubs, or `hub:` and a name. With `published`, sound is made of windows as
    the authors' own decoder makes it; otherwise it is what SNAC makes of all codes at once.
    """

    def __init__(
        self,
        weights: str = "hub:canopylabs/orpheus-3b-0.1-ft",
        snac: str = "hub:hubertsiuzdak/snac_24khz",
        *,
        sampling: Sampling = DEFAULT_SAMPLING,
        use_published_decoder: bool = False,
    ) -> None:
        self.lm = LanguageModel(Weights(weights))
        self.snac = Snac(Weights(snac))
        self.sampling = sampling
        self.use_published_decoder = use_published_decoder

    @walk
    def speak(self, text: str, voice: str, sampling: Sampling) -> Iterator[Audio]:
        """Say a text."""
        kv, codes = self.lm.kv(), Stream("codes")
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(self.lm.prompt(text, voice), kv, sampling))
        for _ in s:
            codes.put(self.lm.token_to_code(s.token))
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_over(s.token))
        codes.put(self.lm.token_to_code(s.token))  # the end

        past, w = (
            self.snac.state(CodecStreamState),
            windows(codes, size=4 * CODES_PER_FRAME, stride=CODES_PER_FRAME, flush=True),
        )
        for window in w:  # runs while the loop above still runs
            if self.use_published_decoder:
                sound = self.snac.decode_middle_frame(window, sampling.seed)
            else:
                sound = self.snac.decode_next(window, w.fresh, past, sampling.seed)
            yield Audio(sound, rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. What it reads are characters."""
        voice = request.voice or VOICES[0]
        if voice not in VOICES or request.speed != 1 or request.instructions or request.language not in ("", "en"):
            what = f"it says English in the voices {format_names(VOICES)}, at its own speed and without instructions"
            raise Unsupported(f"{what}\n  fix: ask for nothing else")
        await self.speak(request.text, voice, replace(self.sampling, seed=request.seed))
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return VOICES
