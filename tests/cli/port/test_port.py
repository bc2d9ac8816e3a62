"""`mstar port`: the model around a network of transformers gives what the network gives; the rest is named by line."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from mstar.cli.main import main
from mstar.cli.port.reference import Reference, place_of
from mstar.cli.port.tiny_config import VOCABULARY, tiny_fields
from mstar.testing.parity import parity_all
from mstar.walk.load import load_model
from tests.models.transcripts import one_thread

SITE_PACKAGES = Path(transformers.__file__).parents[1]
DECODERS = [
    "BloomForCausalLM",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("LlamaForCausalLM", "Gemma2ForCausalLM")),
]
ONE_PASS = ["BertModel", "ViTModel", "Wav2Vec2ForCTC", "DistilBertForSequenceClassification"]


@pytest.fixture(autouse=True)
def single(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with one_thread():
        yield


def port(name, *arguments):
    """Port a class. Returns the module of its model and an instance."""
    assert main(["port", f"transformers:{name}", *arguments]) == 0
    folder = Path(arguments[0]) if arguments else next(Path().iterdir())
    file = folder / f"{folder.name}.py"
    assert main(["check", str(file)]) == 0
    model = load_model(str(file))
    return sys.modules[type(model).__module__], model


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_writes_what_the_library_writes(name):
    module, model = port(name, "mine")
    requests = module.requests()
    for request in requests:
        written = [int(one.value) for one in model.run(request).emissions]
        assert written == [int(token) for token in module.reference(request)]
        assert written
    parity_all(model, requests, schedules=2)
    is_paged = "over paged attention:" in Path("mine/mine.py").read_text()
    assert is_paged is (name != "BloomForCausalLM")


@pytest.mark.parametrize("name", ONE_PASS)
def test_a_network_gives_its_result_in_one_call(name):
    module, model = port(name, "mine")
    requests = module.requests()
    network = getattr(transformers, name).from_pretrained("mine/weights").eval()
    for request in requests:
        (given,) = vars(request).values()
        with torch.inference_mode():
            output = network(**{network.main_input_name: torch.from_numpy(given)[None]})
        expected = output.logits if "logits" in output else output.last_hidden_state
        np.testing.assert_allclose(model.run(request).result, expected[0], rtol=1e-5, atol=1e-5)
    parity_all(model, requests, schedules=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "BertModel"])
def test_the_written_test_passes(name):
    port(name, "mine")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd="mine", capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_the_tiny_weights_can_be_written_again():
    port("BloomForCausalLM", "mine")
    spec = importlib.util.spec_from_file_location("tiny_mine", "mine/tiny_mine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.save(Path("again"))
    networks = [transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in ("mine/weights", "again")]
    for name, weight in networks[0].state_dict().items():
        assert torch.equal(weight, networks[1].state_dict()[name]), name


# ---------------------------------------------------------------- what needs a hand
def places(text):
    """File and line of every place that notes name."""
    return [(SITE_PACKAGES / file, int(line)) for file, line in re.findall(r"`(transformers/[\w/]+\.py):(\d+)`", text)]


def line_at(path, number):
    return path.read_text("utf-8").splitlines()[number - 1]


def test_a_composite_is_described_with_lines_of_the_reference(capsys):
    assert main(["port", "transformers:T5ForConditionalGeneration"]) == 0
    assert "read t5/PORTING.md" in capsys.readouterr().out
    assert [path.name for path in Path("t5").iterdir()] == ["PORTING.md"]
    notes = Path("t5/PORTING.md").read_text()
    assert "No model was written" in notes
    assert re.search(r"`encoder` \| T5Stack \| [\d,]+ \| `transformers/\S+:\d+` \| ", notes)
    order = re.findall(r"^\d+\. `self\.(\w+)`", notes, re.MULTILINE)
    assert order[:2] == ["encoder", "decoder"]
    assert len(places(notes)) > 8
    for path, number in places(notes):
        assert line_at(path, number).strip(), (path, number)


def test_random_numbers_of_a_network_are_found_with_their_lines():
    assert main(["port", "transformers:VitsModel"]) == 0
    notes = Path("vits/PORTING.md").read_text()
    needs = notes.partition("## Needs a hand")[2]
    drawing = [line for line in needs.splitlines() if "draws random numbers" in line]
    assert drawing
    for line in drawing:
        ((path, number),) = places(line)
        name = re.search(r"\(`(\w+)`\)", line)[1]
        assert name in line_at(path, number)


def test_places_are_those_of_the_code():
    reference = Reference("LlamaForCausalLM")
    assert line_at(SITE_PACKAGES / reference.place.file, reference.place.line).startswith(("class Llama", "@"))
    assert str(place_of(reference.network_class)) == str(reference.place)


# ---------------------------------------------------------------- tiny configs
def test_ids_that_the_tiny_vocabulary_does_not_have_become_its_last_ones():
    fields = tiny_fields(transformers.CohereConfig)
    assert fields["vocab_size"] == VOCABULARY
    assert fields["eos_token_id"] == VOCABULARY - 1
    assert "bos_token_id" not in fields, "5 is in the vocabulary"


def test_configs_of_parts_are_tiny_too():
    fields = tiny_fields(transformers.LlavaConfig)
    config = transformers.LlavaConfig(**fields)
    assert config.text_config.hidden_size == config.vision_config.hidden_size == 32
    assert config.text_config.num_hidden_layers == 2


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["LlamaForCausalLM"], "does not name a class of transformers"),
        (["transformers:LamaForCausalLM"], "has no network LamaForCausalLM (did you mean"),
        (["transformers:LlamaConfig"], "has no network LlamaConfig"),
        (["transformers:LlamaForCausalLM", "my-model"], "'my-model' cannot be the name of a Python module"),
    ],
)
def test_what_is_no_network_is_refused(arguments, message, capsys):
    assert main(["port", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "fix: " in error
    assert not [*Path().iterdir()]


def test_nothing_is_overwritten(capsys):
    Path("llama").mkdir()
    assert main(["port", "transformers:LlamaForCausalLM"]) == 1
    assert "llama exists already\n  fix: " in capsys.readouterr().err
