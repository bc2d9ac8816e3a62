"""Tests of the image generation and edit endpoints: content, formats, partial images and errors."""

import base64
import io
import json

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from PIL import Image

from mstar.requests import ImageInput, ImageRequest
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator, VideoGenerator


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"painter": ImageGenerator(), "filmer": VideoGenerator()}) as started:
        yield started


@pytest.fixture(scope="module")
def client(model_server):
    with OpenAI(base_url=f"{model_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def pixels(b64_json):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(b64_json))).convert("RGB"))


def expected_images(**params):
    """Images of an eager run of the model: the partial ones, then the final one."""
    return [emission.value for emission in ImageGenerator().run(ImageRequest(**params)).emissions]


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


# ---------------------------------------------------------------- generations
def test_an_image_is_the_output_of_the_model(client):
    response = client.images.generate(model="painter", prompt="a cat", size="40x32", extra_body={"seed": 5})
    assert np.array_equal(
        pixels(response.data[0].b64_json), expected_images(prompt="a cat", width=40, height=32, seed=5)[-1]
    )
    assert response.usage.input_tokens_details.text_tokens == 5


def test_n_images_have_consecutive_seeds(client):
    response = client.images.generate(model="painter", prompt="a cat", n=3, extra_body={"seed": 5})
    for index, image in enumerate(response.data):
        assert np.array_equal(pixels(image.b64_json), expected_images(prompt="a cat", seed=5 + index)[-1])


@pytest.mark.parametrize("name", ["png", "jpeg", "webp"])
def test_formats(client, name):
    response = client.images.generate(
        model="painter", prompt="a", size="32x32", output_format=name, output_compression=100, extra_body={"seed": 1}
    )
    data = base64.b64decode(response.data[0].b64_json)
    assert Image.open(io.BytesIO(data)).format == name.upper()
    expected = expected_images(prompt="a", width=32, height=32, seed=1)[-1].astype(int)
    assert np.abs(pixels(response.data[0].b64_json).astype(int) - expected).mean() < (1 if name == "png" else 12)


def test_a_stream_has_partial_images(client):
    stream = client.images.generate(
        model="painter", prompt="a cat", stream=True, partial_images=2, size="24x16", extra_body={"seed": 9}
    )
    events = list(stream)
    expected = expected_images(prompt="a cat", width=24, height=16, seed=9, partial_images=2)
    partial, completed = "image_generation.partial_image", "image_generation.completed"
    assert [event.type for event in events] == [partial, partial, completed]
    assert [event.partial_image_index for event in events[:2]] == [0, 1]
    for event, image in zip(events, expected, strict=True):
        assert np.array_equal(pixels(event.b64_json), image)
        assert (event.size, event.output_format) == ("24x16", "png")
    assert events[-1].usage.total_tokens == 5


def test_a_partial_image_arrives_before_the_final_one_is_generated(model_server):
    body = {"model": "painter", "prompt": "slower", "stream": True, "partial_images": 3}
    with model_server.client() as http, http.stream("POST", "/v1/images/generations", json=body) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: image_generation.partial_image"
        assert not model_server.is_idle(0)  # the final image is still generated
    assert model_server.is_idle()  # the disconnect cancels it


def test_a_failure_during_a_stream_is_an_error_event(model_server):
    body = {"model": "painter", "prompt": "break it", "stream": True, "partial_images": 1}
    with model_server.client() as http:
        response = http.post("/v1/images/generations", json=body)
    assert "completed" not in response.text
    assert "secret" not in response.text
    assert "model_error" in response.text


@pytest.mark.parametrize(
    "params",
    [
        {"n": 0},
        {"n": 11},
        {"n": "2"},
        {"n": True},
        {"size": "0x10"},
        {"size": "99999x10"},
        {"size": "9000x9000"},
        {"size": "big"},
        {"partial_images": 4},
        {"partial_images": -1},
        {"output_compression": 101},
        {"output_format": "gif"},
        {"guidance_scale": 1e400},
        {"guidance_scale": "NaN"},
        {"num_inference_steps": 2**63},
        {"num_inference_steps": 0},
        {"seed": 2**64},
        {"prompt": ""},
        {"prompt": None},
        {"prompt": "x" * 32_001},
    ],
)
def test_invalid_parameters_never_reach_a_model(model_server, params):
    count = len(model_server.models["painter"].seen)
    with model_server.client() as http:
        body = json.dumps({"model": "painter", "prompt": "a"} | params).replace("Infinity", "1e400")
        response = http.post("/v1/images/generations", content=body)
    assert response.status_code == 400, response.text
    assert len(model_server.models["painter"].seen) == count


@pytest.mark.parametrize(
    "params",
    [{"response_format": "url"}, {"background": "transparent"}, {"stream": True, "n": 2}, {"partial_images": 1}],
)
def test_unsupported_parameters_are_rejected(client, params):
    with pytest.raises(BadRequestError) as raised:
        client.images.generate(model="painter", prompt="a", **params)
    assert raised.value.code == "unsupported_parameter"


def test_a_model_without_images_names_its_endpoints(client):
    with pytest.raises(NotFoundError, match="/v1/videos"):
        client.images.generate(model="filmer", prompt="a")


# ---------------------------------------------------------------- edits
SOURCE = np.random.default_rng(0).integers(0, 255, (16, 24, 3)).astype(np.uint8)


def test_an_edit_changes_only_the_masked_area(client):
    mask = np.zeros_like(SOURCE)
    mask[:, 12:] = 255
    response = client.images.edit(
        model="painter", prompt="a cat", image=png(SOURCE), mask=png(mask), extra_body={"seed": 2}
    )
    expected = expected_images(prompt="a cat", seed=2, sources=(ImageInput(SOURCE),), mask=ImageInput(mask))[-1]
    assert np.array_equal(pixels(response.data[0].b64_json), expected)
    assert response.usage.input_tokens_details.image_tokens == 1


def test_an_edit_of_several_images_as_a_stream(client):
    stream = client.images.edit(
        model="painter", prompt="ab", image=[png(SOURCE), png(255 - SOURCE)], stream=True, partial_images=1
    )
    assert [event.type for event in stream] == ["image_edit.partial_image", "image_edit.completed"]


@pytest.mark.parametrize("data", [b"", b"not an image", png(SOURCE)[:60]])
def test_a_file_that_is_not_an_image_is_rejected(client, data):
    with pytest.raises(BadRequestError) as raised:
        client.images.edit(model="painter", prompt="ab", image=("a.png", data))
    assert raised.value.param == "image"


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "n": "11"}, {"prompt": "a", "seed": "x"}])
def test_invalid_forms_are_rejected(model_server, fields):
    with model_server.client() as http:
        response = http.post("/v1/images/edits", data={"model": "painter"} | fields, files={"image": png(SOURCE)})
        assert response.status_code == 400
        assert http.post("/v1/images/edits", content=b"x").status_code == 415
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        assert http.post("/v1/images/edits", content=b"--y", headers=headers).status_code == 400


def test_a_mask_must_have_the_size_of_its_image(client):
    with pytest.raises(BadRequestError, match="20x16, but the image is 24x16"):
        client.images.edit(model="painter", prompt="a", image=png(SOURCE), mask=png(SOURCE[:, :20]))


def test_an_edit_needs_an_image(model_server):
    with model_server.client() as http:
        response = http.post("/v1/images/edits", data={"model": "painter", "prompt": "a"}, files={"other": b"x"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "image")
