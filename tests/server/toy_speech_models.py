"""Toy text-to-speech and speech-to-text models: every letter is a 0.1 s tone of its own pitch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mstar import Audio, Component, Float32, Int64, Model, Tensor, Text, WordTimestamps, loop, op, walk
from mstar.frontend.response_stream import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import Finish, Segment, SpeechRequest, Transcript, TranscriptionRequest, WordTimestamp
from mstar.server.app import build_app
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.state import ServerState
from mstar.wire.messages import Peer
from tests.server.toy_server import Server

RATE = 16_000
LETTER = RATE // 10


def pitch_of(letter):
    """Frequency in Hz of a letter's tone; neighbors are 30 Hz apart."""
    return 300 + 30 * (letter - 32)


def tones(text, rate=RATE):
    """Synthesize a text."""
    time_s = np.arange(rate // 10) / rate
    return np.concatenate([0.5 * np.sin(2 * np.pi * pitch_of(letter) * time_s) for letter in text.encode()]).astype(
        "f4"
    )


def letters_in(samples, rate):
    """Recognize the letters of synthesized audio, by the peak of each window's spectrum."""
    size = rate // 10
    windows = np.asarray(samples)[: len(samples) // size * size].reshape(-1, size) * np.hanning(size)
    pitches = np.argmax(np.abs(np.fft.rfft(windows)), axis=1) * 10
    return np.round((pitches - 300) / 30 + 32).astype(np.int64)


class ToneGenerator(Component):
    @op
    def tone(self, text: str, step: int) -> Float32[Tensor, "T"]:
        if text.startswith("slow"):
            time.sleep(0.02)
        if text.startswith("boom") and step == 3:
            raise RuntimeError("an internal secret: /etc/passwd")
        return tones(text[step])

    @op
    def words(self, text: str, step: int) -> list[WordTimestamp]:
        """The word that ends with this letter, if any."""
        if text[step] == " " or text[step + 1 : step + 2].strip():
            return []
        start = text.rfind(" ", 0, step + 1) + 1
        return [WordTimestamp(text[start : step + 1], start / 10, (step + 1) / 10, start, step + 1)]


class ToneSpeaker(Model):
    """Text-to-speech model with two voices and word timestamps; one output per letter."""

    def __init__(self) -> None:
        self.generator = ToneGenerator()
        self.seen: list[SpeechRequest] = []

    @walk
    def say(self, text: str, steps: int) -> Iterator[Audio | WordTimestamps]:
        for step in loop(steps=steps):
            yield WordTimestamps(self.generator.words(text, step))
            yield Audio(self.generator.tone(text, step), rate=RATE)

    async def route(self, request: SpeechRequest) -> Finish:
        self.seen.append(request)
        await self.say(request.text, len(request.text))
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> Sequence[str]:
        return ("alto", "bass")


class ToneRecognizer(Component):
    @op
    def letters(self, samples: Float32[Tensor, "T"], rate: int) -> Int64[Tensor, "N"]:
        return letters_in(samples, rate)

    @op
    def pick(self, letters: Int64[Tensor, "N"], step: int, prompt: str) -> Int64[Tensor, "1"]:
        if prompt == "slow":
            time.sleep(0.02)
        if prompt == "boom" and step == 3:
            raise RuntimeError("an internal secret: /etc/passwd")
        return letters[step : step + 1]


class ToneTranscriber(Model):
    """Transcribes `ToneSpeaker` audio, one segment per word. With the prompt `terse` it returns no segments.

    It has word times, except with the prompt `no words`.
    """

    def __init__(self) -> None:
        self.recognizer = ToneRecognizer()
        self.seen: list[TranscriptionRequest] = []

    @walk
    def transcribe(
        self, samples: Float32[Tensor, "T"], rate: int, steps: int, prompt: str
    ) -> Generator[Text, None, Int64[Tensor, "N"]]:
        letters = self.recognizer.letters(samples, rate)
        for step in loop(steps=steps):
            yield Text(self.recognizer.pick(letters, step, prompt))
        return letters

    async def route(self, request: TranscriptionRequest) -> Transcript | None:
        self.seen.append(request)
        audio = request.audio
        seconds = len(audio.samples) / audio.rate
        letters = await self.transcribe(audio.samples, audio.rate, int(seconds * 10 + 1e-6), request.prompt)
        if request.prompt == "terse":
            return None
        text = self.detokenize(letters.tolist())
        text = text.upper() if request.is_translation else text
        segments, start = [], 0
        for word in text.split(" "):
            segments.append(Segment(start / 10, (start + len(word)) / 10, word))
            start += len(word) + 1
        has_words = request.word_timestamps and request.prompt != "no words"
        words = tuple(Segment(one.start, one.end, f" {one.text}") for one in segments) if has_words else None
        return Transcript(text, tuple(segments), request.language or "en", seconds, words)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return bytes(tokens).decode(errors="replace")


@contextmanager
def run_speech_server():
    """Serve both models until the context exits."""
    models = {"talker": ToneSpeaker(), "scribe": ToneTranscriber()}
    planned = {name: PlannedModel(model, plan(model.graphs(), None)) for name, model in models.items()}
    state = ServerState(models)
    state.plans = {name: model.plans for name, model in planned.items()}
    http_server = HttpServer(state, build_app(state), drain_timeout_s=2)
    with InProcessLauncher(planned) as launcher, bind_socket("127.0.0.1", 0) as listening:
        frontend = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(frontend)
        event_loop = asyncio.new_event_loop()

        async def run():
            state.start_accepting(frontend, lambda: (launcher.conductor, Peer("local", 0)), event_loop)
            await http_server.serve([listening])

        thread = threading.Thread(target=lambda: event_loop.run_until_complete(run()))
        thread.start()
        while not http_server.started:
            time.sleep(0.005)
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield Server(url, state, frontend, launcher, None, event_loop, http_server)
        finally:
            event_loop.call_soon_threadsafe(http_server.begin_shutdown)
            thread.join()
            event_loop.close()
