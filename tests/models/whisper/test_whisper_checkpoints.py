"""Whisper from a folder in the Hugging Face layout: tokens equal those of transformers, for every placement.

The reference is plain `generate` with the library's timestamp rules. Whisper's own `generate` is not used, because it
seeks in the audio by what it has written.
"""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as t
from transformers.generation import logits_process as rules

from mstar.errors import LoadError
from mstar.models.whisper import tokenizer
from mstar.models.whisper.merge import ChunkMerger
from mstar.models.whisper.timestamps import apply_timestamp_rules
from mstar.models.whisper.tiny_en import load_network
from mstar.models.whisper.tokenizer import SpecialTokens, WhisperTokenizer
from mstar.models.whisper.whisper import Whisper
from mstar.models.whisper.whisper_asr import split_by_timestamps
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Segment, TranscriptionRequest
from mstar.testing.parity import parity_all
from tests.models.concurrent_clients import emitted_values, in_process, in_processes, run_clients
from tests.models.transcripts import detokenize_emissions, one_thread, word_error_rate
from tests.models.whisper import whisper_tiny as tiny
from tests.models.whisper.recording import recording, transcribe_single_pass

MOST = 40
LONG = TranscriptionRequest(tiny.sound(5, 7.3))
REQUESTS = [
    TranscriptionRequest(tiny.sound(1)),
    TranscriptionRequest(tiny.sound(2, 1.2), language="fr", is_translation=True),
    LONG,
    TranscriptionRequest(tiny.sound(3), temperature=0.7),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    """One thread and few tokens: random weights hardly ever end."""
    with one_thread(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokenizer, "MAX_TRANSCRIPT_TOKENS", MOST)
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def model(saved):
    return Whisper(saved, chunk_s=2, overlap_s=0.5)


@pytest.fixture(scope="module")
def network(saved):
    return t.WhisperForConditionalGeneration.from_pretrained(saved).eval()


@pytest.fixture(scope="module")
def eager(model):
    return [model.run(request) for request in REQUESTS]


class Ends(t.LogitsProcessor):
    """Logits processor: a transcript ends at the end of the audio, and at most a second before it."""

    def __init__(self, moments, begin):
        self.moments, self.begin = moments, begin

    def __call__(self, input_ids, scores):
        timestamps = [token - tiny.ZERO for token in input_ids[0, self.begin :].tolist()]
        if len(timestamps) > 1 and timestamps[-2] < 0 <= timestamps[-1] and timestamps[-1] >= self.moments - 20:
            scores[:, torch.arange(scores.shape[1]) != tiny.END] = -torch.inf
        if len(timestamps) > 1 and min(timestamps[-2:]) >= 0 and timestamps[-1] < self.moments - 50:
            scores[:, tiny.END] = -torch.inf
        return scores


def shortened(network, positions):
    """The library's network for a window of this number of positions."""
    config = t.WhisperConfig(**(tiny.SIZE | {"max_source_positions": positions}))
    made, tensors = t.WhisperForConditionalGeneration(config).eval(), network.state_dict()
    tensors["model.encoder.embed_positions.weight"] = tensors["model.encoder.embed_positions.weight"][:positions]
    made.load_state_dict(tensors)
    made.generation_config = network.generation_config
    return made


def generated(network, sound, start, moments=None):
    """Return the library's tokens after a prompt. With `moments`, two seconds of silence follow the audio."""
    how = {} if moments is None else {"max_length": (moments + 100) * tiny.RATE // 50}
    spectrum = t.WhisperFeatureExtractor(chunk_length=tiny.SECONDS)(
        sound.samples, sampling_rate=tiny.RATE, return_tensors="pt", **how
    ).input_features
    config, own = network.generation_config, []
    if moments is not None:
        network, own = shortened(network, moments + 100), [Ends(moments, len(start))]
    own += [
        rules.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, len(start)),
        rules.SuppressTokensLogitsProcessor(config.suppress_tokens),
        rules.WhisperTimeStampLogitsProcessor(config, len(start)),
    ]
    plain = t.GenerationConfig(
        max_new_tokens=MOST,
        do_sample=False,
        eos_token_id=tiny.END,
        pad_token_id=tiny.END,
        decoder_start_token_id=tiny.BEGIN,
    )
    start = torch.tensor([start])
    made = t.GenerationMixin.generate(
        network, spectrum, generation_config=plain, decoder_input_ids=start, logits_processor=own
    )
    return [token for token in made[0, start.shape[1] :].tolist() if token != tiny.END], spectrum


def tokens_of(outcome):
    return [int(one.value) for one in outcome.emissions]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_tokens_and_languages_equal_transformers(number, model, network):
    sound = tiny.sound(number)
    outcome = model.run(TranscriptionRequest(sound))
    language = {"en": tiny.EN, "de": tiny.DE, "fr": tiny.FR}[outcome.result.language]
    expected, spectrum = generated(network, sound, [tiny.BEGIN, language, tiny.TRANSCRIBE])
    assert network.detect_language(spectrum, num_segment_frames=spectrum.shape[2]).tolist() == [language]
    assert tokens_of(outcome) == expected
    assert len({token for token in expected if token < tiny.END}) > 1
    assert len([token for token in expected if token >= tiny.ZERO]) > 2


def test_language_and_task_can_be_requested(model, network):
    sound = tiny.sound(1)
    texts = {}
    for code, language, task in (("fr", tiny.FR, tiny.TRANSLATE), ("fr-CA", tiny.FR, tiny.TRANSCRIBE)):
        request = TranscriptionRequest(sound, language=code, is_translation=task == tiny.TRANSLATE)
        outcome = model.run(request)
        assert outcome.result.language == "fr"
        assert tokens_of(outcome) == generated(network, sound, [tiny.BEGIN, language, task])[0]
        texts[code] = outcome.result.text
    assert texts["fr"] != texts["fr-CA"]


def test_english_only_checkpoints_have_no_languages(tmp_path, network):
    model = Whisper(tiny.save(tmp_path, is_english=True), chunk_s=2)
    outcome = model.run(TranscriptionRequest(tiny.sound(1)))
    assert outcome.result.language == "en"
    assert tokens_of(outcome) == generated(network, tiny.sound(1), [tiny.BEGIN])[0]
    with pytest.raises(NotImplementedError, match=r"English speech, without[\s\S]*fix: "):
        model.run(TranscriptionRequest(tiny.sound(1), is_translation=True))


def test_a_transcript_is_the_text_of_its_tokens(model, eager):
    for outcome, request in zip(eager, REQUESTS, strict=True):
        transcript = outcome.result
        assert transcript.text == detokenize_emissions(model, outcome.emissions).strip()
        assert transcript.seconds == len(request.audio.samples) / tiny.RATE
        moments = [moment for one in transcript.segments for moment in (one.start, one.end)]
        assert moments == sorted(moments)
        assert moments[-1] <= transcript.seconds + 0.01


def test_long_audio_is_split_and_merged(tmp_path):
    saved = tiny.save(tmp_path, is_wordy=True)
    model, network = Whisper(saved, chunk_s=2, overlap_s=0.5), t.WhisperForConditionalGeneration.from_pretrained(saved)
    sounds, spans = model.merger.split(LONG.audio)
    assert [(one.start, one.end) for one in spans] == [(0, 2), (1.5, 3.5), (3, 5), (4.5, 6.5), (6, 7.3)]
    language = model.run(TranscriptionRequest(sounds[0])).result.language
    start = [tiny.BEGIN, model.asr.tokenizer.special_tokens.languages[language], tiny.TRANSCRIBE]
    texts = [
        torch.tensor(generated(network, one, start, len(one.samples) * 50 // tiny.RATE)[0])[:, None] for one in sounds
    ]
    tokens, _, segments, words = model.merger.join(texts, [[] for _ in texts], spans, LONG.audio, language)
    assert words == []
    outcome = model.run(LONG)
    assert tokens_of(outcome) == tokens
    assert len(tokens) > 20
    assert len(set(tokens)) > 2
    assert list(outcome.result.segments) == segments


def test_audio_is_split_at_pauses_which_are_skipped():
    at, stitcher = np.arange(20 * 16_000) / 16_000, ChunkMerger(Letters(), 8, 2)
    loud = np.sin(900 * at).astype(np.float32)
    pauses = [(3.0, 3.6), (5.0, 5.4), (6.0, 7.0), (12.0, 12.1), (18.0, 20.0)]
    for start, end in pauses:
        loud[(at >= start) & (at < end)] = 0
    chunks, spans = stitcher.split(AudioInput(loud, 16_000))
    # The last pause between 4 s and 8 s is at 6 s. Until 15 s there is none of 0.3 s, so two seconds overlap.
    assert [(one.start, one.end) for one in spans] == [(0, 6.2), (6.8, 14.8), (12.8, 18.2)]
    assert [len(one.samples) / 16_000 for one in chunks] == pytest.approx([6.2, 8, 5.4])
    silent = stitcher.split(AudioInput(np.zeros(9 * 16_000, np.float32), 16_000))[1]
    assert [(one.start, one.end) for one in silent] == [(0, 0.2)]


def test_a_transcript_ends_with_its_audio():
    zero, end = Letters.special_tokens.timestamp_begin, Letters.special_tokens.end
    generated = [[zero, 65, zero + 90], [zero, 65, zero + 30], [zero, 65, zero + 30, zero + 30], [zero, 65]]

    def allowed(ends):
        return apply_timestamp_rules(torch.zeros(4, zero + 200), generated, ends, Letters.special_tokens).isfinite()

    known, unknown = allowed([100] * 4), allowed([None] * 4)
    assert known[0].nonzero().flatten().tolist() == [end], "nothing follows the last words"
    assert unknown[0, zero + 90]
    assert torch.equal(known[1], unknown[1])
    assert (known[2, end], unknown[2, end]) == (False, True), "words that have begun would be lost"
    assert torch.equal(known[3], unknown[3])


class Letters(WhisperTokenizer):
    special_tokens = SpecialTokens(end=900, start=901, timestamp_begin=1000)

    def __init__(self):
        pass

    def detokenize(self, tokens):
        return "".join(map(chr, tokens))


def stitched(*texts, overlap=10):
    """Merge chunks of twenty seconds; `|` is the middle of each, in time."""
    stitcher = ChunkMerger(Letters(), 20, overlap)
    spans = [Segment(number * (20 - overlap), number * (20 - overlap) + 20, "") for number in range(len(texts))]
    tokens = [
        [1000, *map(ord, first), 1500, 1500, *map(ord, second), 2000]
        for first, second in (text.split("|") for text in texts)
    ]
    silence = AudioInput(np.zeros(0, np.float32), 16_000)
    parts = [list(torch.tensor(one)[:, None]) for one in tokens]
    joined, count, segments, _ = stitcher.join(parts, [[] for _ in tokens], spans, silence, "en")
    assert count == len(joined)
    assert "".join(one.text for one in segments) == "".join(map(chr, joined))
    return "".join(map(chr, joined)), segments


def test_overlapping_chunks_are_merged_at_common_tokens():
    text, segments = stitched("the quick brown |fox jumps ovXX", "YYmps over the |lazy dog")
    assert text == "the quick brown fox jumps over the lazy dog"
    assert [(one.start, one.end) for one in segments] == [(0, 10), (10, 20), (20, 30)]
    assert stitched("abc|def", "XYZ|ghi")[0] == "abcdefghi", "nothing is alike: the first is believed as far as it goes"
    assert stitched("abc|", "|ghi")[0] == "abcghi", "no speech in the overlap"
    assert stitched("aaaa|", "|aaaa")[0] == "aaaaaaaa", "equal tokens at other times are not merged"
    assert stitched("one |two three", "two three |four five", "four five |six")[0] == "one two three four five six"


def test_words_of_overlapping_chunks_keep_their_times():
    merger, spans = ChunkMerger(Letters(), 20, 10), [Segment(0, 20, ""), Segment(10, 30, "")]
    texts = ["ab cd ef", "cd ef gh"]
    tokens = [list(torch.tensor([1000, *map(ord, text), 2000])[:, None]) for text in texts]
    times = [
        [start + index for index in range(9)] for start in (8, 1)
    ]  # `cd` is at 11 s in the first chunk and in both
    silence = AudioInput(np.zeros(0, np.float32), 16_000)
    joined, _, _, words = merger.join(tokens, times, spans, silence, "en")
    assert "".join(map(chr, joined)) == "ab cd ef gh"
    assert [(word.text, word.start, word.end) for word in words] == [
        ("ab", 8, 10),
        (" cd", 10, 13),
        (" ef", 13, 16),
        (" gh", 16, 19),
    ]


def test_every_checkpoint_has_words(model):
    for request in (REQUESTS[0], LONG):
        outcome = model.run(replace(request, word_timestamps=True))
        plain = model.run(request)
        assert tokens_of(outcome) == tokens_of(plain)
        assert outcome.result.segments == plain.result.segments
        assert "".join(word.text for word in outcome.result.words).strip() == outcome.result.text
        moments = [moment for word in outcome.result.words for moment in (word.start, word.end)]
        assert moments == sorted(moments)
        assert 0 < moments[-1] <= outcome.result.seconds
    parity_all(model, [replace(REQUESTS[1], word_timestamps=True), replace(LONG, word_timestamps=True)], schedules=1)
    pool = model.asr.decoder.store.pool
    assert pool.free_pages == pool.count


def test_timestamps_are_clamped_to_the_span():
    span = Segment(10, 12, "")
    assert split_by_timestamps([1000, 7, 1050, 1060, 8, 1040, 9], span, 1000) == [
        (10, 11, [7]),
        (11.2, 11.2, [8]),
        (11.2, 12, [9]),
    ]


def test_served_results_equal_eager_results_under_any_placement(model):
    parity_all(model, REQUESTS[:3], schedules=2)


def test_a_sliding_window_frees_old_pages(saved, model, network):
    sound, narrow = tiny.sound(2), Whisper(saved, chunk_s=2, overlap_s=0.5, window=8)
    actual = tokens_of(narrow.run(TranscriptionRequest(sound, language="en")))
    assert actual != tokens_of(model.run(TranscriptionRequest(sound, language="en")))
    assert len(actual) > 8
    start = torch.tensor([[tiny.BEGIN, tiny.EN, tiny.TRANSCRIBE, *actual]])
    near = torch.ones(start.shape[1], start.shape[1], dtype=torch.bool).tril().triu(-7)
    spectrum = generated(network, sound, [tiny.BEGIN])[1]
    with torch.inference_mode():
        states = network.model.encoder(spectrum).last_hidden_state
        bars = torch.zeros(near.shape).masked_fill(~near, torch.finfo(torch.float32).min)
        hidden = network.model.decoder(start, attention_mask=bars[None, None], encoder_hidden_states=states)
        logits = network.proj_out(hidden.last_hidden_state)[0]
        prefixes = [actual[:end] for end in range(len(actual))]
        expected = (
            apply_timestamp_rules(logits[2:-1], prefixes, [None] * len(actual), narrow.asr.tokenizer.special_tokens)
            .argmax(-1)
            .tolist()
        )
    assert actual == expected
    assert narrow.run(LONG).result.text
    pool = narrow.asr.decoder.store.pool
    assert pool.free_pages == pool.count


@pytest.mark.parametrize("options", [{"prompt": "Peter"}, {"language": "xx"}])
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"`de`, `en`, `fr`, without a prompt\n  fix: "):
        model.run(TranscriptionRequest(tiny.sound(1), **options))


def test_incomplete_folders_are_rejected(tmp_path):
    with pytest.raises(LoadError, match=r"generation_config.json is missing\n  fix: "):
        _ = WhisperTokenizer(Weights(str(tmp_path))).special_tokens
    (tmp_path / "generation_config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"has no 'no_timestamps_token_id'\n  fix: "):
        _ = WhisperTokenizer(Weights(str(tmp_path))).special_tokens


def test_it_is_traced_without_its_libraries():
    code = """
import sys
from mstar.models.whisper.whisper import Whisper
assert Whisper().graphs()
print([name for name in ("torch", "transformers", "numpy", "tokenizers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def transcripts(deployment, requests, leavers):
    """Return the transcripts of concurrent clients, while others connect and disconnect."""
    clients = run_clients(deployment, "whisper", requests, leavers, 0.7)
    return [([*map(int, emitted_values(client, "Text"))], client.end) for client in clients]


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("whisper", model) as deployment:
        for number, (tokens, _) in enumerate(transcripts(deployment, REQUESTS[:3] * 5 + REQUESTS[:1], leavers=3)):
            assert tokens == tokens_of(eager[number % 3])


FILE = """
from mstar.models.whisper import tokenizer
from mstar.models.whisper.whisper import Whisper

tokenizer.MAX_TRANSCRIPT_TOKENS = 40


class Tiny(Whisper):
    def __init__(self):
        super().__init__({weights!r}, chunk_s=2, overlap_s=0.5)
"""
PLACES = {
    "one worker": {"asr": '"a"', "merger": '"a"'},
    "apart": {"asr": '"a"', "merger": '"b"'},
    "two replicas": {"asr": '["a", "b"]', "merger": '"a"'},
}


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", PLACES)
def test_processes_give_the_eager_result(places, saved, eager, tmp_path):
    file = tmp_path / "whisper_here.py"
    file.write_text(FILE.format(weights=saved))
    with in_processes("whisper", file, PLACES[places]) as deployment:
        for number, (tokens, _) in enumerate(transcripts(deployment, REQUESTS * 4, leavers=8)):
            assert tokens == tokens_of(eager[number % 4])


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [8, 9])
def test_parallel_chunks_equal_a_single_pass(seed, report, monkeypatch):
    monkeypatch.setattr(tokenizer, "MAX_TRANSCRIPT_TOKENS", 224)
    sound = recording(90, seed)
    transcript = Whisper().run(TranscriptionRequest(sound)).result
    expected = transcribe_single_pass(load_network(), sound)
    share = word_error_rate(expected, transcript.text)
    report(f"Whisper: {transcript.seconds:.0f} s in chunks differ from one pass in {share:.1%} of the words")
    assert share <= 0.01
    assert transcript.segments[-1].end > transcript.seconds - 3
