"""Voxtral processor: a conversation or a transcription request as tokens, and its audio as spectrograms.

The library's processor needs mistral_common for the layout of prompts, which is written here instead. It is that of
tokenizer versions 7 to 13, without tools:

    <s>[INST][BEGIN_AUDIO][AUDIO]…text[/INST]answer</s>[INST]…[/INST]
    <s>[INST][BEGIN_AUDIO][AUDIO]…[/INST]lang:en[TRANSCRIBE]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from mstar import Component, Float32, Int64, Tensor, op
from mstar.errors import NeverFits, Unsupported
from mstar.models.voxtral.checkpoint import SAMPLE_RATE_HZ, Checkpoint
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, ChatRequest, ContentPart, Message, Sampling, TranscriptionRequest

_MARKERS = {"system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "user": ("[INST]", "[/INST]"), "assistant": ("", "</s>")}
"""Special tokens before and after a message."""
_JOIN = "\n\n"
"""Between neighboring texts of a message, and of messages of one role."""


class _Prompt:
    """Tokens and windows of audio of a prompt while it is built."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.tokens, self.windows = list[int](), list[Tensor]()
        self.add_marker("<s>")

    def add_marker(self, name: str) -> None:
        """Add a special token, unless the name is empty."""
        self.tokens += [self._checkpoint.token_id(name)] if name else []

    def add_text(self, text: str) -> None:
        """Add text."""
        self.tokens += self._checkpoint.tokenizer.encode(text).ids

    def add_audio(self, sound: AudioInput) -> None:
        """Add audio, padded with silence to whole windows."""
        checkpoint, samples = self._checkpoint, resample(sound.samples, sound.rate, SAMPLE_RATE_HZ)
        if not len(samples):
            raise Unsupported("the audio has no samples\n  fix: send at least one")
        extractor, frames = checkpoint.feature_extractor, checkpoint.window_frames
        options = {"pad_to_multiple_of": frames * extractor.hop_length, "truncation": False, "return_tensors": "pt"}
        features = extractor(samples, sampling_rate=SAMPLE_RATE_HZ, padding=True, **options)["input_features"][0]
        windows = features.unflatten(1, (-1, frames)).transpose(0, 1).contiguous().unbind()
        self.windows += windows
        self.add_marker("[BEGIN_AUDIO]")
        self.tokens += [checkpoint.config.audio_token_id] * (len(windows) * checkpoint.window_tokens)

    def finish(self, max_tokens: int) -> tuple[Tensor, list[Tensor], int]:
        """Return tokens, windows, and the maximum number of tokens of the answer."""
        import torch

        limit, count = self._checkpoint.config.text_config.max_position_embeddings, len(self.tokens)
        if count >= limit:
            problem = f"the prompt has {count} tokens, the context holds {limit}"
            raise NeverFits(f"{problem}\n  fix: send less audio or text, fewer than {limit} tokens")
        return torch.tensor(self.tokens), self.windows, min(max_tokens, limit - count)


class Processor(Component):
    """Tokenizer and feature extractor of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the tokenizer and the feature extractor. Raises LoadError without a token of the prompts."""
        names = (*(name for pair in _MARKERS.values() for name in pair if name), "[BEGIN_AUDIO]", "[TRANSCRIBE]")
        _ = self._checkpoint.feature_extractor, [self._checkpoint.token_id(name) for name in names]

    @op
    def chat_prompt(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], list[Float32[Tensor, "M F"]], int]:
        """Return the prompt, the windows of its audio, and the maximum number of tokens of the answer."""
        _check_chat(chat)
        prompt = _Prompt(self._checkpoint)
        for role, parts in merge_messages(chat.messages):
            before, after = _MARKERS[role]
            prompt.add_marker(before)
            for part in parts:
                prompt.add_audio(part) if isinstance(part, AudioInput) else prompt.add_text(part)
            prompt.add_marker(after)
        return prompt.finish(chat.sampling.max_tokens)

    @op
    def transcription_prompt(
        self, request: TranscriptionRequest
    ) -> tuple[Int64[Tensor, "T"], list[Float32[Tensor, "M F"]], Sampling]:
        """Return the prompt, the windows of its audio, and the sampling parameters of the transcript.

        A transcript has at most one token per position of its audio: 12.5 in a second with the published checkpoints.
        """
        prompt = _Prompt(self._checkpoint)
        prompt.add_marker("[INST]")
        prompt.add_audio(request.audio)
        prompt.add_marker("[/INST]")
        if request.language:
            prompt.add_text(f"lang:{request.language}")
        prompt.add_marker("[TRANSCRIBE]")
        tokens, windows, max_tokens = prompt.finish(len(prompt.windows) * self._checkpoint.window_tokens)
        return tokens, windows, Sampling(max_tokens, request.temperature)


def merge_messages(messages: Sequence[Message]) -> Iterator[tuple[str, list[Any]]]:
    """Yield roles and parts. Successive messages of one role are joined, except those of the system."""
    for _, group in groupby(enumerate(messages), _turn):
        same = [message for _, message in group]
        parts = [part for message in same for part in message.parts if not isinstance(part, str) or part]
        merged = list[Any]()
        for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
            joined = list[Any](run)
            merged += [_JOIN.join(joined)] if is_text else joined
        yield same[0].role, merged


def _turn(numbered: tuple[int, Message]) -> tuple[str, int]:
    number, message = numbered
    return message.role, number if message.role == "system" else 0


def _check_chat(chat: ChatRequest) -> None:
    """Raise Unsupported for what the reference refuses, and for what this model does not do."""
    messages, spoken = chat.messages, [message for message in chat.messages if _has_media(message)]
    if chat.tools or any(message.role not in _MARKERS or message.tool_calls for message in messages):
        raise Unsupported("this model calls no tools\n  fix: send no tools and no messages of them")
    if not messages or messages[-1].role != "user":
        role = messages[-1].role if messages else "none"
        raise Unsupported(f"the last message has the role {role}, expected user\n  fix: end with a message of the user")
    if other := next((part for message in spoken for part in message.parts if not _is_read(part)), None):
        raise Unsupported(f"unsupported part {type(other).__name__}\n  fix: send text and audio")
    if any(message.role != "user" for message in spoken):
        raise Unsupported("a message with audio is not of the user\n  fix: send audio as the user")
    if spoken and any(message.role == "system" for message in messages):
        problem = "system messages beside audio are not supported"
        raise Unsupported(f"{problem}\n  fix: put the instruction into the message of the user")


def _has_media(message: Message) -> bool:
    return not all(isinstance(part, str) for part in message.parts)


def _is_read(part: ContentPart) -> bool:
    return isinstance(part, str | AudioInput)


def check_transcription(request: TranscriptionRequest) -> None:
    """Raise Unsupported for options that the reference does not have."""
    if request.is_translation or request.prompt or request.word_timestamps:
        problem = "this model transcribes without translation, prompt and times of words"
        raise Unsupported(f"{problem}\n  fix: leave them out; for a translation, ask for it in a chat with the audio")
    if request.language and not re.fullmatch("[a-z]{2}", request.language):
        problem = f"language is {request.language!r}, expected a code of two letters"
        raise Unsupported(f"{problem}\n  fix: send a code of ISO 639-1 such as en, or no language")
