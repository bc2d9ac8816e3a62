"""Voxtral: chat about text and audio, and transcription, with one language model.

Components: `processor` (tokenizer, spectrogram), `audio_encoder` (that of Whisper, cached by audio content) and `lm`.
A walk encodes each window of 30 s, merges its embeddings into the prompt, and decodes the answer. It calls no tools,
and transcripts have no times: one segment.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, choose, each, loop, walk
from mstar.errors import Unsupported
from mstar.models.voxtral.audio_encoder import AudioEncoder
from mstar.models.voxtral.checkpoint import DEFAULT_WEIGHTS, SAMPLE_RATE_HZ, Checkpoint
from mstar.models.voxtral.language_model import LanguageModel
from mstar.models.voxtral.processor import Processor, check_transcription
from mstar.nn.encoder import TenantState
from mstar.requests import (
    AudioInput,
    ChatRequest,
    Finish,
    Message,
    Sampling,
    Segment,
    Transcript,
    TranscriptionRequest,
)


class Voxtral(Model):
    """Serves chat and transcription requests. `weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.audio_encoder = Processor(self.checkpoint), AudioEncoder(self.checkpoint)
        self.lm = LanguageModel(self.checkpoint)

    @walk
    def answer(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer a conversation."""
        tokens, windows, max_tokens = self.processor.chat_prompt(chat)
        kv = self.lm.kv()
        last, _ = yield from self.write(tokens, windows, max_tokens, chat.sampling, kv)
        return self.lm.finish(tokens, last, kv, chat.sampling)

    @walk
    def transcribe(self, request: TranscriptionRequest) -> Generator[Text, None, str]:
        """Transcribe audio, and return the whole text."""
        tokens, windows, sampling = self.processor.transcription_prompt(request)
        kv = self.lm.kv()
        _, transcript = yield from self.write(tokens, windows, sampling.max_tokens, sampling, kv)
        return self.lm.transcript_text(transcript)

    def write(
        self, tokens: Any, windows: Any, max_tokens: Any, sampling: Any, kv: Any
    ) -> Generator[Text, None, tuple[Any, Any]]:
        """Sub-walk that reads a prompt with its audio and emits the answer. Returns its last token, and all before."""
        owner, encoded = self.audio_encoder.state(TenantState), each(windows)
        for window in encoded:
            encoded.collect(states=self.audio_encoder.encode(window, owner))

        ids, embeddings = self.lm.merge_embeddings(tokens, encoded.states)
        first = self.lm.next_token_mixed(ids, embeddings, kv, sampling)
        s = loop(steps=choose(self.lm.is_over(first, kv, sampling), 0, max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.collect(tokens=s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_over(s.token, kv, sampling))
        return s.token, s.tokens

    async def route(self, request: ChatRequest | TranscriptionRequest) -> Finish | Transcript:
        """Answer or transcribe, or reject what the model does not do."""
        if isinstance(request, ChatRequest):
            if request.audio_output:
                raise Unsupported("this model does not speak\n  fix: request text only")
            return await self.answer(request)
        check_transcription(request)
        text = await self.transcribe(request)
        seconds = len(request.audio.samples) / request.audio.rate
        return Transcript(text, (Segment(0.0, seconds, text),) if text else (), request.language, seconds)

    def warmup_requests(self) -> Sequence[Any]:
        """One short conversation about a second of silence."""
        import numpy as np

        silence = AudioInput(np.zeros(SAMPLE_RATE_HZ, np.float32), SAMPLE_RATE_HZ)
        return [ChatRequest((Message("user", (silence, "Hello.")),), Sampling(max_tokens=2))]

    def input_types(self) -> tuple[type, ...]:
        """Text and audio."""
        return (str, AudioInput)

    def default_sampling(self) -> Sampling | None:
        """Return the sampling parameters of the checkpoint, None if it has none."""
        return self.checkpoint.default_sampling

    def max_context_tokens(self) -> int | None:
        """Return the context length in tokens, None if it is unknown."""
        return self.checkpoint.max_positions

    def max_text_bytes(self) -> int | None:
        """Return the bytes of text above which a conversation exceeds the context, None if there is no bound."""
        max_positions = self.checkpoint.max_positions
        return None if max_positions is None else self.lm.max_text_bytes(max_positions)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.lm.detokenize(tokens)
