"""Text to speech and transcription with LiveKit's OpenAI plugin and its defaults: MP3 as SSE.

Runs in its own venv: talk_livekit.py URL TEXT FOLDER. Hibari synthesizes the text to FOLDER/speech.pcm. Prints two
Whisper transcripts: of FOLDER/input.wav, and of the synthesized speech.
"""

import asyncio
import sys
import wave
from pathlib import Path

from livekit import rtc
from livekit.plugins import openai


async def synthesize_speech(url: str, text: str) -> rtc.AudioFrame:
    """Synthesize a text."""
    tts = openai.TTS(model="hibari", base_url=url, api_key="none")
    frame = await tts.synthesize(text).collect()
    await tts.aclose()
    assert (frame.sample_rate, frame.num_channels) == (24_000, 1)
    return frame


async def transcribe(url: str, frame: rtc.AudioFrame) -> str:
    """Transcribe audio."""
    stt = openai.STT(model="whisper", base_url=url, api_key="none", use_realtime=False)
    event = await stt.recognize(frame)
    await stt.aclose()
    return event.alternatives[0].text


async def main(url: str, text: str, folder: Path) -> None:
    """Synthesize once, and transcribe twice."""
    with wave.open(str(folder / "input.wav")) as file:
        rate, count = file.getframerate(), file.getnframes()
        recorded = rtc.AudioFrame(file.readframes(count), rate, 1, count)
    synthesized = await synthesize_speech(url, text)
    (folder / "speech.pcm").write_bytes(bytes(synthesized.data))
    sys.stdout.write(f"{await transcribe(url, recorded)}\n{await transcribe(url, synthesized)}\n")


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
