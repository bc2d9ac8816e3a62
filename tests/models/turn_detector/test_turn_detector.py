"""Turn detector with its shipped weights, on recordings of voices and sentences that it was not trained on."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mstar.errors import LoadError
from mstar.models.turn_detector.features import CHANNELS, FRAMES, RATE_HZ, compute_features
from mstar.models.turn_detector.turn_detector import WEIGHTS_FILE, TurnClassifier, TurnDetector
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, TurnDetectionRequest
from mstar.testing.parity import parity_all
from tests.integration.deployment_clients import Oracle, add_frontend, run_clients
from tests.models.concurrent_clients import in_process
from tests.models.turn_detector.held_out import of_kind

FINISHED, PAUSED, COMMANDS, BACKCHANNELS = map(of_kind, ("sentence", "pause", "short", "backchannel"))
MAX_WEIGHTS_BYTES = 2 << 20
PAGE = Path(__file__).parents[3] / "docs/api/realtime.md"


@pytest.fixture(scope="module")
def classifier():
    classifier = TurnClassifier()
    classifier.prepare()
    return classifier


# The limits below are about what the model card reports: they find a broken detector, and are no targets.
def share(conditions):
    conditions = list(conditions)
    return sum(conditions) / len(conditions)


def test_ends_and_pauses_are_distinguished(classifier):
    cut = [(one, one.word_ends[len(one.word_ends) // 2]) for one in FINISHED]
    ends = [classifier.predict(one.sound()) for one in FINISHED]
    pauses = [classifier.predict(one.sound()) for one in PAUSED]
    cuts = [classifier.predict(one.sound(seconds)) for one, seconds in cut]
    assert share(one.continues < 0.5 for one in ends) >= 0.5
    assert share(one.continues > 0.5 for one in pauses) >= 0.7
    assert share(one.continues > 0.5 for one in cuts) >= 0.7


def test_backchannels_and_interruptions_are_distinguished(classifier):
    for interruptions in (
        [classifier.predict(one.sound(0.6, silence=0)) for one in FINISHED],
        [classifier.predict(one.sound()) for one in COMMANDS],
    ):
        assert share(one.backchannel < 0.5 for one in interruptions) >= 0.7
    listening = [classifier.predict(one.sound()) for one in BACKCHANNELS]
    assert share(one.backchannel > 0.5 for one in listening) >= 0.7


def test_volume_and_sample_rate_do_not_matter(classifier):
    for one in FINISHED[:2] + BACKCHANNELS[:2]:
        plain = classifier.predict(one.sound())
        quiet = AudioInput(one.sound().samples * np.float32(0.05), RATE_HZ)
        for other in (quiet, AudioInput(resample(one.sound().samples, RATE_HZ, 24_000), 24_000)):
            assert classifier.predict(other).end_of_turn == pytest.approx(plain.end_of_turn, abs=0.15)


@pytest.mark.parametrize("seconds", [0, 0.01, 3.5])
def test_any_audio_has_probabilities(classifier, seconds):
    silence = classifier.predict(AudioInput(np.zeros(int(seconds * RATE_HZ), np.float32), RATE_HZ))
    assert silence.continues + silence.end_of_turn + silence.backchannel == pytest.approx(1)
    assert compute_features(np.zeros(int(seconds * RATE_HZ))).shape == (CHANNELS, FRAMES)


def test_a_decision_takes_less_than_the_target(classifier):
    sound = AudioInput(resample(FINISHED[0].sound().samples, RATE_HZ, 24_000), 24_000)
    classifier.predict(sound)
    seconds = []
    for _ in range(20):
        started = time.thread_time()
        classifier.predict(sound)
        seconds.append(time.thread_time() - started)
    assert sorted(seconds)[18] <= 0.06


def test_requests_equal_the_eager_run():
    model = TurnDetector()
    requests = [TurnDetectionRequest(one.sound()) for one in FINISHED[:3] + BACKCHANNELS[:3]]
    parity_all(model, requests, schedules=2)
    with in_process("turns", model) as deployment:
        run_clients(add_frontend(deployment, "front_turns"), "turns", Oracle(model, requests), len(requests))


def test_the_weights_are_small_and_the_card_has_their_figures():
    assert WEIGHTS_FILE.stat().st_size <= MAX_WEIGHTS_BYTES
    card = WEIGHTS_FILE.with_name("MODEL_CARD.md").read_text()
    assert "synthetic speech only" in card
    assert re.search(r"end-of-turn F1, after a pause \| 0\.\d{3}", card)


def test_the_documented_figures_are_those_of_the_card():
    card, page = (file.read_text() for file in (WEIGHTS_FILE.with_name("MODEL_CARD.md"), PAGE))
    for figure in ("backchannels that stop the answer", "of these, short turns", "end-of-turn F1, after a pause"):
        (all_voices,) = re.findall(rf"^\| {figure} \| ([^|]+) \|", card, re.MULTILINE)
        assert all_voices in page


def test_a_file_of_another_network_is_rejected(tmp_path):
    file = tmp_path / "turns.safetensors"
    with pytest.raises(LoadError, match=r"fix: use a file of tools.turn_detector"):
        TurnClassifier(str(file)).prepare()
    tensors = load_file(WEIGHTS_FILE)
    save_file({**tensors, "classes.bias": np.zeros(2, np.float16)}, file)
    with pytest.raises(LoadError, match=r"does not have the tensors of a turn detector"):
        TurnClassifier(str(file)).prepare()
