"""A voice model that reads the last message of the user aloud, with the weights of Hibari. Its text is that message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mstar import Audio, Model, Text, WordTimestamps, loop, walk
from mstar.models.hibari.tts import SAMPLE_RATE_HZ, HibariTts, SpeechPosition
from mstar.requests import ChatRequest, Finish, Message, SpeechRequest


class Reader(Model):
    """Serves chat requests with audio output."""

    def __init__(self) -> None:
        self.tts = HibariTts()

    @walk
    def speak(self, speech: SpeechRequest, text: str) -> Iterator[Text | Audio | WordTimestamps]:
        """Synthesize sentence by sentence."""
        yield Text(text)
        sentences, count = self.tts.split_sentences(speech)
        position = self.tts.state(SpeechPosition)
        for step in loop(steps=count):
            audio, words = self.tts.synthesize(sentences[step], speech, step, position)
            yield WordTimestamps(words)
            yield Audio(audio, rate=SAMPLE_RATE_HZ)

    async def route(self, request: ChatRequest) -> Finish:
        """Read the last message."""
        text = " ".join(part for part in request.messages[-1].parts if isinstance(part, str))
        await self.speak(SpeechRequest(text), text)
        return Finish("stop", {"text": len(text)})

    def warmup_requests(self) -> Sequence[ChatRequest]:
        """One word."""
        return [ChatRequest((Message("user", ("Hello.",)),), audio_output=True)]
