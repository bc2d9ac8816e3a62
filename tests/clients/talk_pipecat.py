"""Speak and listen through a server with Pipecat: each service in a pipeline, as a voice agent has it.

It runs in a venv of its own: talk_pipecat.py URL TEXT FOLDER. Hibari says the text into FOLDER/said.pcm. What Whisper
heard in FOLDER/heard.wav is the first line that is written, and what it heard of the text the second.
"""

import asyncio
import sys
import wave
from pathlib import Path

from pipecat.frames.frames import (
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test

START_S = 30


async def synthesize_speech(url: str, text: str) -> bytes:
    """How a text sounds, in samples of 16 bits."""
    tts = OpenAITTSService(api_key="none", base_url=url, settings=OpenAITTSService.Settings(model="hibari"))
    frames, _ = await run_test(tts, frames_to_send=[TTSSpeakFrame(text)], start_timeout=START_S)
    sounds = [frame for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    assert {(frame.sample_rate, frame.num_channels) for frame in sounds} == {(24_000, 1)}
    return b"".join(frame.audio for frame in sounds)


async def transcribe(url: str, samples: bytes, rate: int) -> str:
    """What is said in samples of 16 bits."""
    stt = OpenAISTTService(api_key="none", base_url=url, settings=OpenAISTTService.Settings(model="whisper"))
    sounds = [InputAudioRawFrame(samples[at : at + rate], rate, 1) for at in range(0, len(samples), rate)]
    frames, _ = await run_test(
        stt,
        frames_to_send=[VADUserStartedSpeakingFrame(), *sounds, VADUserStoppedSpeakingFrame()],
        pipeline_params=PipelineParams(audio_in_sample_rate=rate),
        start_timeout=START_S,
    )
    return " ".join(frame.text for frame in frames if isinstance(frame, TranscriptionFrame))


async def main(url: str, text: str, folder: Path) -> None:
    """Speak once, and listen twice."""
    with wave.open(str(folder / "heard.wav")) as file:
        rate, samples = file.getframerate(), file.readframes(file.getnframes())
    own = await synthesize_speech(url, text)
    (folder / "said.pcm").write_bytes(own)
    sys.stdout.write(f"{await transcribe(url, samples, rate)}\n{await transcribe(url, own, 24_000)}\n")


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
