"""Speak and listen through a server with LiveKit's plugin, as it is without being told otherwise: MP3 in events.

It runs in a venv of its own: talk_livekit.py URL TEXT FOLDER. Hibari says the text into FOLDER/said.pcm. What Whisper
heard in FOLDER/heard.wav is the first line that is written, and what it heard of the text the second.
"""

import asyncio
import sys
import wave
from pathlib import Path

from livekit import rtc
from livekit.plugins import openai


async def synthesize_speech(url: str, text: str) -> rtc.AudioFrame:
    """How a text sounds."""
    tts = openai.TTS(model="hibari", base_url=url, api_key="none")
    frame = await tts.synthesize(text).collect()
    await tts.aclose()
    assert (frame.sample_rate, frame.num_channels) == (24_000, 1)
    return frame


async def transcribe(url: str, frame: rtc.AudioFrame) -> str:
    """What is said in a sound."""
    stt = openai.STT(model="whisper", base_url=url, api_key="none", use_realtime=False)
    event = await stt.recognize(frame)
    await stt.aclose()
    return event.alternatives[0].text


async def main(url: str, text: str, folder: Path) -> None:
    """Speak once, and listen twice."""
    with wave.open(str(folder / "heard.wav")) as file:
        rate, count = file.getframerate(), file.getnframes()
        given = rtc.AudioFrame(file.readframes(count), rate, 1, count)
    own = await synthesize_speech(url, text)
    (folder / "said.pcm").write_bytes(bytes(own.data))
    sys.stdout.write(f"{await transcribe(url, given)}\n{await transcribe(url, own)}\n")


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
