"""Text to speech and transcription with Pipecat: each service in a pipeline, as in a voice agent.

Runs in its own venv: talk_pipecat.py URL TEXT FOLDER. Hibari synthesizes the text to FOLDER/speech.pcm. Prints two
Whisper transcripts: of FOLDER/input.wav, and of the synthesized speech.
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
    """Synthesize a text, as 16-bit PCM."""
    tts = OpenAITTSService(api_key="none", base_url=url, settings=OpenAITTSService.Settings(model="hibari"))
    frames, _ = await run_test(tts, frames_to_send=[TTSSpeakFrame(text)], start_timeout=START_S)
    audio_frames = [frame for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    assert {(frame.sample_rate, frame.num_channels) for frame in audio_frames} == {(24_000, 1)}
    return b"".join(frame.audio for frame in audio_frames)


async def transcribe(url: str, samples: bytes, rate: int) -> str:
    """Transcribe 16-bit PCM."""
    stt = OpenAISTTService(api_key="none", base_url=url, settings=OpenAISTTService.Settings(model="whisper"))
    audio_frames = [InputAudioRawFrame(samples[at : at + rate], rate, 1) for at in range(0, len(samples), rate)]
    frames, _ = await run_test(
        stt,
        frames_to_send=[VADUserStartedSpeakingFrame(), *audio_frames, VADUserStoppedSpeakingFrame()],
        pipeline_params=PipelineParams(audio_in_sample_rate=rate),
        start_timeout=START_S,
    )
    return " ".join(frame.text for frame in frames if isinstance(frame, TranscriptionFrame))


async def main(url: str, text: str, folder: Path) -> None:
    """Synthesize once, and transcribe twice."""
    with wave.open(str(folder / "input.wav")) as file:
        rate, samples = file.getframerate(), file.readframes(file.getnframes())
    synthesized = await synthesize_speech(url, text)
    (folder / "speech.pcm").write_bytes(synthesized)
    sys.stdout.write(f"{await transcribe(url, samples, rate)}\n{await transcribe(url, synthesized, 24_000)}\n")


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
