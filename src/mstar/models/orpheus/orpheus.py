"""Orpheus-3B: English text to speech (TTS) in eight voices, with emotion tags such as `<laugh>` and `<sigh>`.

Components: `lm` (a Llama that writes audio codes, seven per frame) and `snac` (the neural audio codec that decodes
them). The walk overlaps both: SNAC decodes a sliding window while the Llama writes; audio starts after 28 codes and
continues every seven. `mstar.models.orpheus.snac` describes the differences from the published decoder. Voices are not
cloned.
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
"""Sampling parameters of the published model."""


class Orpheus(Model):
    """Serves speech requests.

    Weights are folders in the Hugging Face layout, or `hub:NAME`. With `use_published_decoder`, audio windows are
    decoded as in the published code; otherwise the stream equals SNAC's output for all codes at once.
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
        """Synthesize a text."""
        kv, codes = self.lm.kv(), Stream("codes")
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(self.lm.prompt(text, voice), kv, sampling))
        for _ in s:
            codes.put(self.lm.token_to_code(s.token))
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_over(s.token))
        codes.put(self.lm.token_to_code(s.token))  # the end marker

        codec_state = self.snac.state(CodecStreamState)
        w = windows(codes, size=4 * CODES_PER_FRAME, stride=CODES_PER_FRAME, flush=True)
        for window in w:  # runs while the loop above still runs
            if self.use_published_decoder:
                samples = self.snac.decode_middle_frame(window, sampling.seed)
            else:
                samples = self.snac.decode_next(window, w.fresh, codec_state, sampling.seed)
            yield Audio(samples, rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        voice = request.voice or VOICES[0]
        if voice not in VOICES or request.speed != 1 or request.instructions or request.language not in ("", "en"):
            what = f"Orpheus speaks English in the voices {format_names(VOICES)}, at speed 1 and without instructions"
            raise Unsupported(f"{what}\n  fix: use one of these voices, and leave out speed, language and instructions")
        await self.speak(request.text, voice, replace(self.sampling, seed=request.seed))
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """Names of the voices."""
        return VOICES
