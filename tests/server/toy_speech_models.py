"""Models that speak and hear, for the server's tests: every letter is a tenth of a second of a tone of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mstar import Audio, Component, Float32, Int64, Model, Tensor, Text, loop, op, walk
from mstar.frontend.response_stream import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import Finish, Segment, SpeechRequest, Transcript, TranscriptionRequest
from mstar.server.app import build_app
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.state import ServerState
from mstar.wire.messages import Peer
from tests.server.toy_server import Server

RATE = 16_000
LETTER = RATE // 10


def pitch_of(letter):
    """How high the tone of a letter is: far from that of its neighbours."""
    return 300 + 30 * (letter - 32)


def tones(text, rate=RATE):
    """How a text sounds."""
    at = np.arange(rate // 10) / rate
    return np.concatenate([0.5 * np.sin(2 * np.pi * pitch_of(letter) * at) for letter in text.encode()]).astype("f4")


def letters_in(samples, rate):
    """The text that sounds so."""
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
            raise RuntimeError("a secret of the house: /etc/passwd")
        return tones(text[step])


class ToneSpeaker(Model):
    """Says a text letter by letter."""

    def __init__(self) -> None:
        self.generator = ToneGenerator()
        self.seen: list[SpeechRequest] = []

    @walk
    def say(self, text: str, steps: int) -> Iterator[Audio]:
        for step in loop(steps=steps):
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
            raise RuntimeError("a secret of the house: /etc/passwd")
        return letters[step : step + 1]


class ToneTranscriber(Model):
    """Writes down what a Talker says; a segment for each word. Told to be `terse`, it tells no times."""

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
        sound = request.audio
        seconds = len(sound.samples) / sound.rate
        letters = await self.transcribe(sound.samples, sound.rate, int(seconds * 10 + 1e-6), request.prompt)
        if request.prompt == "terse":
            return None
        text = self.detokenize(letters.tolist())
        text = text.upper() if request.is_translation else text
        segments, at = [], 0
        for word in text.split(" "):
            segments.append(Segment(at / 10, (at + len(word)) / 10, word))
            at += len(word) + 1
        return Transcript(text, tuple(segments), request.language or "en", seconds)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return bytes(tokens).decode(errors="replace")


@contextmanager
def run_speech_server():
    """A server with these models."""
    models = {"talker": ToneSpeaker(), "scribe": ToneTranscriber()}
    deployed = {name: PlannedModel(model, plan(model.graphs(), None)) for name, model in models.items()}
    door = ServerState(models)
    door.plans = {name: one.plans for name, one in deployed.items()}
    listener = HttpServer(door, build_app(door), drain_timeout_s=2)
    with InProcessLauncher(deployed) as together, bind_socket("127.0.0.1", 0) as listening:
        front = FrontendActor(together.actor_loop, Peer("front", 0), together.conductors)
        together.add_frontend(front)
        events = asyncio.new_event_loop()

        async def run():
            door.start_accepting(front, lambda: (together.conductor, Peer("local", 0)), events)
            await listener.serve([listening])

        thread = threading.Thread(target=lambda: events.run_until_complete(run()))
        thread.start()
        while not listener.started:
            time.sleep(0.005)
        yield Server(f"http://127.0.0.1:{listening.getsockname()[1]}", door, front, together, None)
        events.call_soon_threadsafe(listener.begin_shutdown)
        thread.join()
        events.close()
