"""Whisper tiny.en with a long recording, by the size of its chunks: how fast, how early, and how many words differ.

Small chunks cost less attention, and more borders, at each of which two seconds of silence are encoded and words can be
lost. The reference is one pass of transformers from beginning to end. One size is run again with `speech_window_s`,
which frees the encoder positions that the transcript has left behind. Seconds are CPU time of the process, one thread.

Workload: the published Whisper tiny.en with its real weights, ten minutes of the recordings of scripts/fetch-speech.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bench.claims import Claim, Row, print_table
from bench.in_process import NAME, one_thread, serve_in_process
from bench.speech.recorded_speech import one_recording
from mstar.models.whisper.tiny_en import load_network
from mstar.models.whisper.whisper import Whisper
from mstar.nn.audio.word_errors import word_error_rate
from mstar.requests import AudioInput, TranscriptionRequest
from mstar.wire.messages import RequestFinished

CHUNKS_S = (5.0, 10.0, 15.0, 20.0, 25.0, 28.0)
OVERLAP_SHARE = 0.25
"""Overlap of chunks without a pause between them, relative to their size."""
DEFAULT_CHUNK_S = 20.0
SPEECH_WINDOW_S = 2.0
TARGET = 4.0
MAX_WORD_ERROR_RATE = 0.01
WARM_UP_S = 30
SAMPLE_INTERVAL_S = 0.02


class Run(NamedTuple):
    """One transcription of the recording."""

    cpu_s: float
    wall_s: float
    pages: float
    """KV pages in use, the mean of samples in time."""
    text: str


@contextmanager
def sampling_pages(pool: Any) -> Generator[list[int]]:
    """Numbers of pages that are in use, at equal intervals."""
    used, is_over = list[int](), threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_INTERVAL_S):
            used.append(pool.count - pool.free_pages)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield used
    finally:
        is_over.set()
        thread.join()


def transcribe(chunk_s: float, sound: AudioInput, speech_window_s: float | None = None) -> Run:
    """Serve one model and transcribe the recording with it."""
    from tests.integration.deployment_clients import Client

    model = Whisper(chunk_s=chunk_s, overlap_s=OVERLAP_SHARE * chunk_s, speech_window_s=speech_window_s)
    with serve_in_process(model) as front_end:

        def run(one: AudioInput) -> str:
            client = Client(front_end, NAME, TranscriptionRequest(one), timeout_s=600)
            client.wait(600)
            assert isinstance(client.end, RequestFinished), client.end
            return client.end.result.content.text

        run(AudioInput(sound.samples[: WARM_UP_S * sound.rate], sound.rate))  # the first time, everything is loaded
        with sampling_pages(model.asr.decoder.store.pool) as used:
            begun, begun_cpu = time.perf_counter(), time.process_time()
            text = run(sound)
            took = time.process_time() - begun_cpu, time.perf_counter() - begun
    return Run(*took, sum(used) / max(1, len(used)), text)


def longform_chunks(minutes: float = 10.0) -> Claim:
    """Which chunk size is fastest with the words of one pass?"""
    from tests.models.whisper.recording import transcribe_single_pass

    sound = one_recording(minutes)
    with one_thread():
        network = load_network()
        transcribe_single_pass(network, AudioInput(sound.samples[: WARM_UP_S * sound.rate], sound.rate))
        begun = time.process_time()
        wanted = transcribe_single_pass(network, sound)
        single_pass_s = time.process_time() - begun
        runs = {f"chunks of {chunk_s:g} s": transcribe(chunk_s, sound) for chunk_s in CHUNKS_S}
        name = f"chunks of {DEFAULT_CHUNK_S:g} s, speech window of {SPEECH_WINDOW_S:g} s"
        runs[name] = transcribe(DEFAULT_CHUNK_S, sound, SPEECH_WINDOW_S)
    rows, best, points = [Row("one pass of transformers", "s", [single_pass_s])], 0.0, dict[str, Any]()
    for name, run in runs.items():
        differing, speed = word_error_rate(wanted, run.text), single_pass_s / run.cpu_s
        points[name] = {"times as fast": round(speed, 2), "words that differ": round(differing, 4)}
        if differing <= MAX_WORD_ERROR_RATE:
            best = max(best, speed)
        rows += [
            Row(name, "s", [run.cpu_s]),
            Row("  until the transcript", "s", [run.wall_s]),
            Row("  times as fast as one pass", "x", [speed]),
            Row("  words that differ", "%", [100 * differing]),
            Row("  KV pages in use, on average", "pages", [run.pages]),
        ]
    print_table(rows)
    text = f"with a fitting chunk size, a long recording is transcribed {TARGET:g} times as fast as in one pass, with "
    text += f"at most {MAX_WORD_ERROR_RATE:.0%} of the words different"
    return Claim(text, round(best, 2), TARGET, best >= TARGET, {"points": points})
