"""Callers with real weights behind a TCP load balancer, in one process on a host of their own.

Each caller holds one realtime session for the whole time. Turn after turn it sends a text, and plays the sound of the
response as it arrives, with a playback buffer: it starts `BUFFER_S` after the text was sent, and stands still when the
sound is not there. The connections are those of `mstar.client`, which resumes a session that was lost.

Prints one JSON line when all calls are open, and one at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import sys
import time
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any

from mstar.client import AsyncClient, ClientError
from tests.client.balancer import balance

BUFFER_S = 1.0
BYTES_PER_S = 48_000
RESUME_TIMEOUT_S = 60.0
SETTINGS = {"type": "realtime", "output_modalities": ["audio"], "audio": {"input": {"turn_detection": None}}}
SENTENCES = (
    "The train to the coast leaves at nine in the morning.",
    "Please turn left after the second bridge.",
    "My sister plays the violin in a small orchestra.",
    "It will rain until Thursday, and then the sun returns.",
    "There are three rooms on the upper floor.",
    "We ordered soup, bread and two glasses of water.",
)
TEXTS = tuple(" ".join(SENTENCES[number : number + 3]) for number in range(len(SENTENCES) - 2))


@dataclass
class Playback:
    """Sound of one response as a client plays it: in each second, whether it was there in time."""

    start_at: float
    """When the first sound is due."""
    seconds: int = 0
    late_seconds: int = 0
    max_gap_s: float = 0.0
    """Longest time for which a sound that was due was not there."""
    _received: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def add(self, now: float, size: int) -> None:
        """Some sound has arrived."""
        self._received.append((now, size))

    def finish(self) -> float:
        """Compute the figures. Returns when all was played."""
        playing_at, late = self.start_at, set[int]()
        played = 0.0
        for arrived_at, size in self._received:
            if arrived_at > playing_at:
                self.max_gap_s = max(self.max_gap_s, arrived_at - playing_at)
                first = int(played)
                late.update(range(first, first + math.ceil(arrived_at - playing_at)))
                playing_at = arrived_at
            playing_at += size / BYTES_PER_S
            played += size / BYTES_PER_S
        self.seconds, self.late_seconds = math.ceil(played), len(late)
        return playing_at


@dataclass
class Call:
    """One call."""

    number: int
    playbacks: list[Playback] = field(default_factory=list[Playback])
    first_sounds_s: list[float] = field(default_factory=list[float])
    different: int = 0
    """Responses whose sound is not that of the undisturbed run, or that have failed."""
    events: int = 0
    doubled: int = 0
    _ids: set[str] = field(default_factory=set[str])
    error: str = ""
    has_ended: bool = False

    async def hold(self, url: str, sounds: dict[str, str], until: float, opened: asyncio.Event) -> None:
        """Hold the call until a time."""
        chosen = random.Random(self.number)
        try:
            client = AsyncClient(url)
            async with client.realtime("reader", resume_timeout_s=RESUME_TIMEOUT_S) as call:
                await call.send({"type": "session.update", "session": SETTINGS})
                opened.set()
                while time.monotonic() < until:
                    text = chosen.choice(TEXTS)
                    if await self._turn(call, text) != sounds[text]:
                        self.different += 1
                    await asyncio.sleep(max(0.0, self.playbacks[-1].finish() - time.monotonic()))
                self.has_ended = True
        except ClientError as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            opened.set()

    async def _turn(self, call: Any, text: str) -> str:
        part = {"type": "input_text", "text": text}
        await call.send(
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [part]}}
        )
        await call.send({"type": "response.create"})
        asked_at, sound = time.monotonic(), hashlib.sha256()
        self.playbacks.append(Playback(asked_at + BUFFER_S))
        has_sound = False
        while (event := await call.recv())["type"] != "response.done":
            self.events += 1
            self.doubled += event["event_id"] in self._ids
            self._ids.add(event["event_id"])
            if event["type"] == "response.output_audio.delta":
                if not has_sound:
                    has_sound = True
                    self.first_sounds_s.append(time.monotonic() - asked_at)
                pcm = b64decode(event["delta"])
                self.playbacks[-1].add(time.monotonic(), len(pcm))
                sound.update(pcm)
            elif event["type"] == "error":
                return f"error {event['error']}"
        status = event["response"]["status"]
        if status != "completed":
            self.error = json.dumps(event["response"]["status_details"])
        return sound.hexdigest() if status == "completed" else status


async def hold_calls(servers: list[tuple[str, int]], count: int, seconds: float) -> None:
    """Hold the calls, and print the figures."""
    async with balance(servers) as (balancer, url):
        while len(balancer.ready) < len(servers):
            await asyncio.sleep(0.1)
        sounds = dict.fromkeys(TEXTS, "")
        for text in TEXTS:  # the undisturbed run, before anything is killed; each server loads its voice
            runs = [Call(-1) for _ in servers]
            made: set[str] = set()
            for run, (address, port) in zip(runs, servers, strict=True):
                client = AsyncClient(f"http://{address}:{port}")
                async with client.realtime("reader") as call:
                    await call.send({"type": "session.update", "session": SETTINGS})
                    made.add(await run._turn(call, text))
            assert len(made) == 1, f"the servers do not make the same sound: {made}"
            sounds[text] = made.pop()
        calls, until = [Call(number) for number in range(count)], time.monotonic() + seconds
        opened = [asyncio.Event() for _ in calls]
        held = [asyncio.create_task(c.hold(url, sounds, until, o)) for c, o in zip(calls, opened, strict=True)]
        await asyncio.gather(*(event.wait() for event in opened))
        print(json.dumps({"open": count}), flush=True)
        ready = asyncio.create_task(_watch(balancer))
        await asyncio.gather(*held)
        ready.cancel()
        print(json.dumps(_figures(calls)), flush=True)


async def _watch(balancer: Any) -> None:
    """Print which servers are ready, whenever that changes."""
    known: set[Any] = set()
    while True:
        if balancer.ready != known:
            known = {*balancer.ready}
            print(json.dumps({"ready": sorted(address for address, _ in known)}), flush=True)
        await asyncio.sleep(0.05)


def _figures(calls: list[Call]) -> dict[str, Any]:
    playbacks = [playback for call in calls for playback in call.playbacks]
    first = sorted(seconds for call in calls for seconds in call.first_sounds_s)
    return {
        "seconds": sum(playback.seconds for playback in playbacks),
        "late_seconds": sum(playback.late_seconds for playback in playbacks),
        "max_gap_s": round(max((playback.max_gap_s for playback in playbacks), default=0.0), 2),
        "responses": len(playbacks),
        "different": sum(call.different for call in calls),
        "events": sum(call.events for call in calls),
        "doubled": sum(call.doubled for call in calls),
        "ended": sum(call.has_ended for call in calls),
        "first_sound_s": {
            "median": round(first[len(first) // 2], 2) if first else None,
            "p99": round(first[int(len(first) * 0.99)], 2) if first else None,
        },
        "errors": [call.error for call in calls if call.error],
    }


if __name__ == "__main__":
    hosts, number, duration = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    asyncio.run(hold_calls([(address, port) for address, port in hosts], number, duration))
