"""A checkpoint is read as the library reads it, bit for bit; what does not fit is refused by name."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from mstar.errors import LoadError
from mstar.nn.weights.sources import PINNED_PACKAGES, Weights
from tests.nn.lm.model_families import FAMILIES, SMALL, new_network

TOKENS = torch.arange(3, 43)[None]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads on tiny tensors wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_bars():
    t.utils.logging.disable_progress_bar()
    yield
    t.utils.logging.enable_progress_bar()


def logits(model):
    with torch.inference_mode():
        return model.eval()(TOKENS).logits


def saved(folder, made, **how):
    made.save_pretrained(folder, **how)
    return folder


def changed(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_answers_as_the_one_that_the_library_reads(tmp_path, name, dtype):
    made = new_network(name)
    saved(tmp_path, made, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    library = type(made).from_pretrained(tmp_path, dtype=dtype or "auto")
    ours = Weights(str(tmp_path)).network(dtype)
    assert torch.equal(logits(ours), logits(library))
    buffers = dict(library.named_buffers())
    assert all(torch.equal(buffer, buffers[key]) for key, buffer in ours.named_buffers())
    assert (logits(ours) - logits(made)).abs().max() <= (0.2 if dtype else 0)


def test_tied_weights_are_one_tensor(tmp_path):
    made = t.LlamaForCausalLM(t.LlamaConfig(**SMALL, tie_word_embeddings=True))
    assert "lm_head.weight" not in load_file(saved(tmp_path, made) / "model.safetensors")
    read = Weights(str(tmp_path)).network()
    assert read.lm_head.weight is read.model.embed_tokens.weight
    assert torch.equal(logits(read), logits(made))


def test_a_network_can_be_changed_without_changing_its_file(tmp_path):
    before = (saved(tmp_path, new_network("llama")) / "model.safetensors").read_bytes()
    read = Weights(str(tmp_path)).network()
    read.model.norm.weight.data.zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_network_outlives_its_files(tmp_path):
    made = new_network("llama")
    read = Weights(str(saved(tmp_path, made))).network()
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(logits(read), logits(made))


def test_progress_is_reported_in_bytes_of_all_files(tmp_path):
    saved(tmp_path, new_network("llama"), max_shard_size="40KB")
    reports = []
    Weights(str(tmp_path)).network(progress=lambda done, total: reports.append((done, total)))
    files = list(tmp_path.glob("*.safetensors"))
    assert len(reports) == len(files) > 1
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert {reports[-1][0], *(total for _, total in reports)} == {sum(file.stat().st_size for file in files)}


def test_a_terminal_is_shown_a_line(tmp_path, monkeypatch, capsys):
    saved(tmp_path, new_network("llama"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Weights(str(tmp_path)).network()
    assert capsys.readouterr().err == "\rread 0 of 0 MB of weights\n"


def test_the_library_shows_no_bar_and_its_own_is_left_as_it_was(tmp_path, capfd):
    t.utils.logging.enable_progress_bar()
    saved(tmp_path, new_network("llama"))
    capfd.readouterr()
    Weights(str(tmp_path)).network()
    assert capfd.readouterr().err == ""
    t.LlamaForCausalLM.from_pretrained(tmp_path)
    assert "Loading weights" in capfd.readouterr().err


def test_every_tensor_that_does_not_fit_is_named(tmp_path, capfd):
    file = saved(tmp_path, new_network("llama")) / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    tensors["surplus.weight"] = torch.zeros(2)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 5)
    save_file(tensors, file)
    capfd.readouterr()
    with pytest.raises(LoadError) as caught:
        Weights(str(tmp_path)).network()
    assert str(caught.value) == (
        "the weights do not match LlamaForCausalLM:\n"
        "    model.norm.weight is missing\n"
        "    surplus.weight is unexpected\n"
        "    model.layers.1.mlp.up_proj.weight is [3, 5], not [64, 32]\n"
        "  fix: use the config.json that the weights were saved with"
    )
    assert capfd.readouterr().err == "", "the library would advise to ignore it"


def test_the_wrong_config_does_not_fill_the_screen(tmp_path):
    saved(tmp_path, new_network("llama"))
    changed(tmp_path, num_hidden_layers=9)
    with pytest.raises(LoadError, match="and 43 more\n  fix"):
        Weights(str(tmp_path)).network()


def test_experts_that_cannot_be_merged_are_named(tmp_path):
    file = saved(tmp_path, new_network("qwen3_moe")) / "model.safetensors"
    odd = {"model.layers.1.mlp.experts.2.down_proj.weight": torch.zeros(3, 5)}
    save_file(load_file(file) | odd, file)
    with pytest.raises(
        LoadError, match=r"model\.layers\.1\.mlp\.experts\.down_proj cannot be converted from its parts"
    ):
        Weights(str(tmp_path)).network()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["Nothing"]}, "transformers has no architecture `Nothing`"),
        ({"architectures": ["pipeline"]}, "transformers has no architecture `pipeline`"),
        ({"architectures": None}, "transformers has no architecture nothing"),
        ({"model_type": "nothing"}, "config.json is not supported: .*`nothing`"),
        ({"model_type": "nothing", "auto_map": {"AutoConfig": "code.Config"}}, "contains custom code"),
        ({"hidden_size": "wide"}, "config.json is not supported: .*hidden_size.*'wide'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method is 'bitsandbytes', supported: `awq`"),
    ],
)
def test_a_config_that_would_be_guessed_at_is_refused(tmp_path, fields, message):
    saved(tmp_path, new_network("llama"))
    changed(tmp_path, **fields)
    with pytest.raises(LoadError, match=message + r"[\s\S]*\n  fix: "):
        Weights(str(tmp_path)).network()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"version https://git-lfs", "is not a complete safetensors file"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "x-1", "b": "x-2"}}',
            "`x-1`, `x-2` missing, listed in the index",
        ),
        ("model.safetensors.index.json", b'{"weight_map": {"a', "is not a complete index of tensors"),
        ("pytorch_model.bin", b"", "has `pytorch_model.bin` but no safetensors; unpickling can run"),
        ("notes.txt", b"", "has neither model.safetensors nor model.safetensors.index.json"),
        ("config.json", b"{", "config.json is not supported"),
    ],
)
def test_files_that_are_not_weights_are_refused(tmp_path, name, content, message):
    (saved(tmp_path, new_network("llama")) / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadError, match=message + r"[\s\S]*\n  fix: "):
        Weights(str(tmp_path)).network()


def test_the_config_names_the_tensors_among_those_of_other_software(tmp_path):
    folder = saved(tmp_path, new_network("llama"))
    expected = Weights(str(folder)).network().state_dict()
    (folder / "model.safetensors").rename(folder / "transformers.safetensors")
    save_file({"other": torch.ones(1)}, folder / "model.safetensors")
    changed(folder, transformers_weights="transformers.safetensors")
    actual = Weights(str(folder)).network().state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    changed(folder, transformers_weights="../transformers.safetensors")
    with pytest.raises(LoadError, match=r"transformers_weights[\s\S]*\n  fix: "):
        Weights(str(folder)).network()


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(LoadError, match=r"config\.json is missing\n  fix: "):
        Weights(str(tmp_path)).network()


def test_weights_are_floats(tmp_path):
    saved(tmp_path, new_network("llama"))
    with pytest.raises(LoadError, match="unsupported dtype 'int8' for weights\n  fix: use one of `float64`"):
        Weights(str(tmp_path)).network("int8")


MEASURED = """
import json, sys, threading, torch
from pathlib import Path
from mstar.nn.weights.checkpoints import read_network  # before measuring: the libraries are memory too

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "RssAnon"))]

before, peak, is_over = held(), held(), threading.Event()

def watch():
    while not is_over.wait(0.001):
        peak[:] = map(max, peak, held())

watcher = threading.Thread(target=watch)
watcher.start()
network = read_network(Path(sys.argv[1]), sys.argv[2] or None, lambda done, total: None)
with torch.inference_mode():
    sum(weight.sum() for weight in network.parameters())  # what is mapped is in memory only when it was used
is_over.set()
watcher.join()
size = sum(weight.nbytes for weight in network.parameters())
print(json.dumps([size, *((most - first) / size for most, first in zip(peak, before))]))
"""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_loading_needs_no_second_copy(tmp_path):
    sizes = {"vocab_size": 8000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
    with torch.device("meta"):
        made = t.LlamaForCausalLM(t.LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8))
    saved(tmp_path, made.to_empty(device="cpu"), max_shard_size="150MB")
    measured = {}
    for dtype in ("", "bfloat16"):
        command = [sys.executable, "-c", MEASURED, str(tmp_path), dtype]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        measured[dtype] = json.loads(result.stdout)
    size, resident, own = measured[""]
    assert size > 400e6
    assert resident < 1.25
    assert own < 0.25, "weights that keep their dtype are the file's own pages"
    _, _, own = measured["bfloat16"]
    assert 0.9 < own < 1.25, "beside the mapped file, which the kernel may drop, there are only the weights"


@pytest.mark.slow
def test_minilm_knows_what_is_alike():
    weights = Weights("package:minilm-l6")
    assert weights.path() == PINNED_PACKAGES["minilm-l6"][0].path().parent
    encoder, tokenizer = weights.network().eval(), weights.tokenizer()
    tokenizer.no_padding()
    sentences = ["A man is eating food.", "A man eats a meal.", "The stock market fell sharply today."]
    with torch.inference_mode():
        ids = [torch.tensor([tokenizer.encode(sentence).ids]) for sentence in sentences]
        meal, same, other = (encoder(row).last_hidden_state.mean(1) for row in ids)
    alike, unlike = (float(torch.cosine_similarity(meal, vector)) for vector in (same, other))
    assert alike > 0.8
    assert abs(unlike) < 0.1
    library = t.AutoModel.from_pretrained(weights.path())
    with torch.inference_mode():
        assert torch.equal(library(ids[0]).last_hidden_state.mean(1), meal)
