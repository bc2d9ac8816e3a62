"""Conversations that are cut at a random moment, over the Realtime WebSocket: what the model believes it said.

A client asks, receives the spoken answer, stops at a random sample and says so (`conversation.item.truncate`), as a
client does whose user interrupts. Then it asks again. Counted are

1. the share of cuts after which the history's text is that of the words in exactly the samples that were played. The
   words come from the alignment of the same sentences, synthesized here; their samples are compared with the received
   ones first, so the alignment is that of the played audio;
2. tokens of the history that were read again: tokens of the next prompt that the model had read or written before, and
   that were neither in its KV cache nor found in the prefix cache;
3. the time from the next question to its first sound, relative to the same turn of a conversation that was never cut:
   a new session is given the same history as items. Both answers are the same, since decoding is greedy.

Workload: the assistant with its published weights (Silero VAD, Whisper tiny.en, SmolLM2-135M, Hibari), whose server,
worker and client share this process.
"""

from __future__ import annotations

import base64
import json
import random
import re
import time
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from bench.claims import Claim, Row, paired_ratio, print_table
from mstar.models.assistant.assistant import Assistant
from mstar.models.hibari.tts import SAMPLE_RATE_HZ, HibariTts, SpeechPosition
from mstar.requests import ChatRequest, Message, SpeechRequest, WordTimestamp

MIN_EXACT, MAX_SLOWDOWN = 0.99, 1.3
MAX_OUTPUT_TOKENS = 40
MAX_PLAYED_MS = 5000
"""Latest moment of a cut."""
QUESTIONS = (
    "Tell me a story about a fox.",
    "What is the capital of France?",
    "Why is the sky blue?",
    "How do I make a cup of tea?",
    "Describe a walk by the sea.",
    "Who was the first person on the moon?",
)
NEXT_QUESTION = "Please tell me more about that."
_SENTENCE = re.compile(r"(?<=[.!?:;])(?= )|(?<=\n)(?!\n)")
"""Where the model splits its text into sentences to speak."""


@dataclass
class Turn:
    """One response as a client receives it."""

    item_id: str = ""
    text: str = ""
    """The whole transcript, before a cut."""
    pcm: bytearray = field(default_factory=bytearray)
    first_sound_s: float = 0.0

    @property
    def played_ms(self) -> int:
        """Milliseconds of audio that were received."""
        return len(self.pcm) * 1000 // (2 * SAMPLE_RATE_HZ)


@dataclass
class Cut:
    """A conversation: what was kept of its first answer, and what its second turn cost."""

    text: str
    """The whole first answer."""
    kept: str
    expected: str
    read_again: int
    """Tokens of the history that the second turn read again."""
    first_sound_s: float
    """Of the second turn."""
    uncut_first_sound_s: float
    """Of the same turn in a conversation that was not cut."""


class Conversation:
    """One WebSocket session with the assistant, in text to the model and in audio from it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.receive("session.created")
        audio = {"input": {"turn_detection": None}}
        session = {"type": "realtime", "max_output_tokens": MAX_OUTPUT_TOKENS, "audio": audio}
        self.send("session.update", session=session)

    def send(self, kind: str, **fields: Any) -> None:
        """Send one event."""
        self._socket.send(json.dumps({"type": kind} | fields))

    def receive(self, kind: str) -> dict[str, Any]:
        """The next event of this kind."""
        while True:
            event = self._next_event()
            if event["type"] == kind:
                return event

    def _next_event(self) -> dict[str, Any]:
        event = json.loads(self._socket.recv(timeout=120))
        # The response can end before the server reads that it is canceled.
        assert event["type"] != "error" or event["error"]["code"] == "response_cancel_not_active", event
        return event

    def add(self, role: str, text: str) -> None:
        """Add a message to the history."""
        content = [{"type": "input_text" if role == "user" else "output_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": role, "content": content})

    def ask(self, question: str, stop_ms: float) -> Turn:
        """Ask, and receive the answer; cancel it once this much audio was received."""
        self.add("user", question)
        turn, begun, is_stopped = Turn(), time.monotonic(), False
        self.send("response.create")
        while True:
            event = self._next_event()
            match event["type"]:
                case "response.output_audio.delta":
                    turn.first_sound_s = turn.first_sound_s or time.monotonic() - begun
                    turn.pcm += base64.b64decode(event["delta"])
                    if turn.played_ms >= stop_ms and not is_stopped:
                        is_stopped = True
                        self.send("response.cancel")
                case "response.output_audio_transcript.done":
                    turn.item_id, turn.text = event["item_id"], event["transcript"]
                case "response.done":
                    return turn
                case _:
                    pass

    def truncate(self, turn: Turn, end_ms: int) -> str:
        """Report what was played; the text that the history has then."""
        self.send("conversation.item.truncate", item_id=turn.item_id, content_index=0, audio_end_ms=end_ms)
        self.receive("conversation.item.truncated")
        self.send("conversation.item.retrieve", item_id=turn.item_id)
        return self.receive("conversation.item.retrieved")["item"]["content"][0]["transcript"]


class Alignment:
    """The words of an answer by samples: its sentences, synthesized again."""

    def __init__(self, tts: HibariTts) -> None:
        self._tts = tts

    def played_text(self, turn: Turn, end_ms: int) -> str:
        """The text up to the last word that ends within the played samples."""
        speech, position, words = SpeechRequest(""), SpeechPosition(), list[WordTimestamp]()
        samples = np.frombuffer(bytes(turn.pcm), "<i2")
        for sentence in _SENTENCE.split(turn.text):
            start = position.samples
            if start >= end_ms * SAMPLE_RATE_HZ // 1000:
                break
            audio, spoken = self._tts.synthesize(sentence, speech, 0, position)
            words += spoken
            received = samples[start : position.samples]
            same = np.abs(np.asarray(audio)[: len(received)] * 32767 - received) <= 2
            assert same.mean() > MIN_EXACT, f"the audio of {sentence!r} is not that which was played"
        spoken = [word for word in words if round(word.end * 1000) <= end_ms]
        return turn.text[: spoken[-1].text_end] if spoken else ""


def _converse(url: str, model: Assistant, question: str, rng: random.Random) -> Cut:
    """Two turns, of which the first is cut; and the second one again, after the same history without a cut."""
    store = model.lm.decoder.store
    with connect(url, max_size=None) as socket:
        conversation = Conversation(socket)
        stop_ms = rng.randint(300, MAX_PLAYED_MS)
        turn = conversation.ask(question, stop_ms)
        end_ms = stop_ms if turn.played_ms >= stop_ms else rng.randint(0, turn.played_ms)
        kept = conversation.truncate(turn, end_ms)
        before = store.prefix_queries - store.prefix_hits
        second = conversation.ask(NEXT_QUESTION, 1)
        computed = store.prefix_queries - store.prefix_hits - before
    with connect(url, max_size=None) as socket:
        conversation = Conversation(socket)
        conversation.add("user", question)
        if kept:
            conversation.add("assistant", kept)
        uncut = conversation.ask(NEXT_QUESTION, 1)
    messages = [Message("user", (question,)), *([Message("assistant", (kept,))] if kept else [])]
    prompt = model.lm.prompt_tokens(ChatRequest((*messages, Message("user", (NEXT_QUESTION,)))))
    seen = [*model.lm.prompt_tokens(ChatRequest((messages[0],))), *model.lm.tokenize(turn.text)]
    known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, seen, strict=False)))
    read_again = computed - (len(prompt) - 1 - known)  # the last one is read with the first step of the answer
    expected = Alignment(model.tts).played_text(turn, end_ms)
    return Cut(turn.text, kept, expected, read_again, second.first_sound_s, uncut.first_sound_s)


def measure(conversations: int, seed: int) -> list[Cut]:
    """Conversations that were cut."""
    from tests.server.model_server import serve_models

    rng, model = random.Random(seed), Assistant()
    with serve_models({"assistant": model}) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?model=assistant"
        _ = model.lm.decoder, model.tts.prepare()
        _converse(url, model, "Hello.", rng)  # the first time, everything is loaded
        return [_converse(url, model, rng.choice(QUESTIONS), rng) for _ in range(conversations)]


def barge_in(conversations: int = 12, seed: int = 1) -> Claim:
    """Is the history after an interruption the text of what was played, and does the next turn start at once?"""
    cuts = measure(conversations, seed)
    exact = [one.kept == one.expected for one in cuts]
    after, without = [one.first_sound_s for one in cuts], [one.uncut_first_sound_s for one in cuts]
    share, ratio, read_again = sum(exact) / len(cuts), paired_ratio(after, without), max(one.read_again for one in cuts)
    print_table(
        [
            Row("history equals the words that were played", "%", [100 * share]),
            Row("words kept", "", [len(one.kept.split()) for one in cuts]),
            Row("tokens of the history read again", "", [one.read_again for one in cuts]),
            Row("first sound of the next turn, after a cut", "s", after),
            Row("first sound of the same turn, without", "s", without),
        ]
    )
    for one in cuts:
        if one.kept != one.expected:
            print(f"kept {one.kept!r}, played {one.expected!r}")
    return Claim(
        "the history after an interruption is the text of the words that were played",
        round(share, 4),
        MIN_EXACT,
        share >= MIN_EXACT and read_again <= 0 and ratio <= MAX_SLOWDOWN,
        {"cuts": len(cuts), "tokens_read_again": read_again, "first_sound_ratio": round(ratio, 2)},
    )
