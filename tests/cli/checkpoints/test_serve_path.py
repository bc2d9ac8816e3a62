"""`mstar serve PATH` of folders that `save_pretrained` wrote: the answers equal those of the libraries."""

import io
import wave
from base64 import b64decode

import numpy as np
import pytest
import transformers as t
from openai import OpenAI, omit
from PIL import Image

from mstar.cli.checkpoints.target import resolve_target
from mstar.requests import ChatRequest, ImageInput, ImageRequest, Message, Sampling
from mstar.walk.load import load_model
from tests.cli.test_serve import start_server, wait_ready
from tests.models.causal_lm import causal_lm_tiny
from tests.models.diffusion import diffusion_tiny
from tests.models.sentence_transformer.minilm import library_vectors, minilm_folder
from tests.models.smolvlm import smolvlm_tiny
from tests.models.smolvlm.test_smolvlm import unrecorded
from tests.models.transcripts import one_thread
from tests.models.vits import vits_tiny
from tests.models.wav2vec2 import wav2vec2_tiny
from tests.models.whisper import whisper_tiny
from tests.models.whisper.test_whisper_checkpoints import generated


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread():
        yield


def open_client(process, url):
    wait_ready(process)
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.slow
def test_a_served_folder_chats_as_transformers(tmp_path):
    folder = causal_lm_tiny.save(tmp_path / "tiny-llama-1.5", "llama")
    expected = causal_lm_tiny.library_answer(folder, "Why?", 12, do_sample=False)
    with start_server(folder) as (process, url):
        client = open_client(process, url)
        assert [model.id for model in client.models.list()] == ["tiny-llama-1.5"]
        message = [{"role": "user", "content": "Why?"}]
        request = {"model": "tiny-llama-1.5", "messages": message, "max_tokens": 12, "temperature": 0}
        assert client.chat.completions.create(**request).choices[0].message.content == expected
        chunks = [
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**request, stream=True)
        ]
        assert "".join(chunks) == expected


@pytest.mark.slow
def test_a_served_folder_transcribes_as_transformers(tmp_path):
    folder = whisper_tiny.save(tmp_path)
    sound = whisper_tiny.sound(1)
    network = t.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    pcm16 = np.round(sound.samples * 32767).astype("<i2")
    pcm = type(sound)((pcm16 / np.float32(32768)).astype(np.float32), sound.rate)
    start = [whisper_tiny.BEGIN, whisper_tiny.EN, whisper_tiny.TRANSCRIBE]
    tokens = [token for token in generated(network, pcm, start)[0] if token < whisper_tiny.END]
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, sound.rate, 0, "NONE", ""))
        written.writeframes(pcm16.tobytes())
    with start_server(folder, "--name", "asr") as (process, url):
        client = open_client(process, url)
        transcript = client.audio.transcriptions.create(model="asr", file=("a.wav", file.getvalue()), language="en")
    expected = "".join(whisper_tiny.LETTERS[token] for token in tokens).strip()
    assert len(expected) > 20
    assert transcript.text.startswith(expected)  # the reference stops after fewer tokens


@pytest.mark.nightly
def test_a_served_folder_embeds_as_sentence_transformers():
    texts = ["A cat sits on the mat.", "The weather is nice today."]
    with start_server(minilm_folder(), "--name", "minilm") as (process, url):
        client = open_client(process, url)
        answer = client.embeddings.create(model="minilm", input=texts)
    vectors = np.array([item.embedding for item in answer.data])
    np.testing.assert_allclose(vectors, library_vectors(texts), atol=1e-5)
    assert answer.usage.prompt_tokens == 17


@pytest.mark.slow
def test_folders_of_three_endpoints_are_served_together(tmp_path):
    for name in ("asr", "tts", "draw"):
        (tmp_path / name).mkdir()
    asr, tts = wav2vec2_tiny.save(tmp_path / "asr"), vits_tiny.save(tmp_path / "tts")
    pipeline = diffusion_tiny.save_flux(tmp_path / "draw")
    manifest = tmp_path / "mstar.toml"
    manifest.write_text("".join(f'[models.{name}]\nmodel = "./{name}"\n' for name in ("asr", "tts", "draw")))
    pcm16 = np.round(wav2vec2_tiny.sound(4).samples * 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, wav2vec2_tiny.RATE, 0, "NONE", ""))
        written.writeframes(pcm16.tobytes())
    with start_server(manifest) as (process, url):
        client = open_client(process, url)
        text = client.audio.transcriptions.create(model="asr", file=("a.wav", file.getvalue())).text
        spoken = client.audio.speech.create(
            model="tts", voice=omit, input="hello there", response_format="wav", extra_body={"seed": 3}
        ).content
        options = {"num_inference_steps": 3, "guidance_scale": 4.0, "seed": 7}
        drawn = client.images.generate(model="draw", prompt="a red cat", size="32x32", extra_body=options).data[0]
    assert text == wav2vec2_tiny.library_text(asr, (pcm16 / np.float32(32768)).astype(np.float32)) != ""
    with wave.open(io.BytesIO(spoken)) as sound:  # the header of a stream does not know its length
        seconds = len(sound.readframes(10 * sound.getframerate())) / 2 / sound.getframerate()
    assert seconds == pytest.approx(len(vits_tiny.library_sound(tts, "hello there", 3)) / 16_000, abs=0.01)
    drawing = ImageRequest("a red cat", 32, 32, 3, 4.0, seed=7)
    expected = np.round(diffusion_tiny.reference_image(pipeline, drawing, 512)[1] * 255).astype(np.int16)
    pixels = np.asarray(Image.open(io.BytesIO(b64decode(drawn.b64_json))), np.int16)
    assert np.abs(pixels - expected).max() <= 1


# ---------------------------------------------------------------- in this process
def test_a_vision_language_folder_answers_as_transformers(tmp_path):
    folder = smolvlm_tiny.save(tmp_path)
    assert resolve_target(folder) == f"smolvlm@{folder}"
    model = unrecorded(load_model(resolve_target(folder)))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    chat = ChatRequest((Message("user", (ImageInput(pixels), "What is it?")),), Sampling(max_tokens=8))
    tokens = [int(emission.value) for emission in model.run(chat).emissions]
    assert tokens == smolvlm_tiny.Reference(folder).write(chat)


def test_a_diffusers_folder_draws_as_diffusers(tmp_path):
    pipeline = diffusion_tiny.save_sd3(tmp_path)
    target = resolve_target(str(tmp_path))
    assert target == f"sd3@{tmp_path}"
    drawing = ImageRequest("a red cat", 32, 32, 3, 4.0, seed=7)
    [image] = load_model(target).run(drawing).emissions
    expected = diffusion_tiny.reference_image(pipeline, drawing, 256)[1]
    difference = np.asarray(image.value, dtype=np.int16) - np.round(expected * 255).astype(np.int16)
    assert np.abs(difference).max() <= 1
