"""Dia on a pretend GPU: the codes and the audio of the CPU."""

from dataclasses import replace

import pytest
import torch

from mstar.models.dia.dia import Dia
from mstar.requests import SpeechRequest
from tests.models.audio_outputs import assert_close
from tests.models.dia import dia_tiny as tiny
from tests.models.dia.test_dia import LONG, TEXT, Speech
from tests.models.on_device import audio_on_host, place, traffic_of
from tests.models.transcripts import one_thread

FRAMES = 20
MAX_WAITS, MAX_COPIES = 2, 3


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("dia"), FRAMES)
    return place(Dia(saved)), Dia(saved)


@pytest.mark.parametrize("temperature", [0.0, 1.8])
def test_the_audio_is_that_of_the_cpu(models, temperature, monkeypatch):
    for model in models:
        monkeypatch.setattr(model, "sampling", replace(model.decoder.checkpoint.sampling, temperature=temperature))
    assert_close(*(audio_on_host(model.run(SpeechRequest(TEXT, seed=3))) for model in models))


def steps(model, rows, temperature):
    """Frames of several requests in a batch, and the traffic of the last step."""
    sampling, traffic = replace(model.decoder.checkpoint.sampling, temperature=temperature), ()
    speeches = [Speech(model, (TEXT, LONG)[row % 2], replace(sampling, seed=row)) for row in range(rows)]
    for _ in range(10):
        columns = [speech.columns() for speech in speeches]
        joined = {name: [column[name] for column in columns] for name in columns[0]}
        results, *traffic = traffic_of(model.decoder, "next_frame", joined)
        for speech, result in zip(speeches, results, strict=True):
            speech.advance(result)
    return torch.stack([torch.stack(speech.frames) for speech in speeches]), traffic


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.8])
def test_a_frame_seldom_waits_for_the_device(models, rows, temperature):
    (frames, (waits, copies)), (expected, _) = (steps(model, rows, temperature) for model in models)
    assert torch.equal(frames, expected)
    assert waits <= MAX_WAITS
    assert copies <= MAX_COPIES


@pytest.mark.slow
def test_evicted_caches_go_on_on_a_device(models):
    placed, on_host = models
    sampling, frames = replace(placed.decoder.checkpoint.sampling, seed=5), []
    for model in (placed, on_host):
        speech = Speech(model, LONG, sampling)
        while not speech.is_over:
            speech.advance(model.decoder.next_frame(**speech.columns()))
            if speech.step == 9:
                for cache in speech.caches:
                    cache.evict()
                model.decoder.restore(speech.caches)
        frames.append(torch.stack(speech.frames))
    assert torch.equal(*frames)
