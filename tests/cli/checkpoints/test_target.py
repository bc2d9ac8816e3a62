"""The model argument of the commands: which checkpoints are recognized, and what the others are told."""

import json
import shutil

import pytest
from huggingface_hub import constants

from mstar.cli import main
from mstar.cli.checkpoints.target import resolve_target, target_name
from mstar.errors import LoadError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path):
    """Makes a folder with JSON files: one that has the fields, and others."""

    def make(file, fields, name="checkpoint", **others):
        made = tmp_path / name
        made.mkdir(exist_ok=True)
        for path, content in {file: fields, **others}.items():
            (made / path).write_text(json.dumps(content))
        return made

    return make


@pytest.mark.parametrize(
    ("architecture", "model"),
    [
        ("LlamaForCausalLM", "causal-lm"),
        ("GPT2LMHeadModel", "causal-lm"),
        ("WhisperForConditionalGeneration", "whisper"),
        ("ParakeetForCTC", "parakeet"),
        ("HubertForCTC", "wav2vec2"),
        ("VitsModel", "vits"),
        ("SmolVLMForConditionalGeneration", "smolvlm"),
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3-omni"),
        ("VoxtralForConditionalGeneration", "voxtral"),
        ("CsmForConditionalGeneration", "csm"),
        ("DiaForConditionalGeneration", "dia"),
        ("BertModel", "sentence-transformer"),
    ],
)
def test_a_folder_of_transformers_is_recognized_by_its_architecture(folder, architecture, model):
    made = folder("config.json", {"architectures": [architecture]})
    assert resolve_target(str(made)) == f"{model}@{made}"


@pytest.mark.parametrize("method", ["awq", "fp8"])
def test_a_quantized_causal_lm_is_recognized(folder, method):
    made = folder(
        "config.json", {"architectures": ["Qwen3ForCausalLM"], "quantization_config": {"quant_method": method}}
    )
    assert resolve_target(str(made)) == f"causal-lm@{made}"


@pytest.mark.parametrize(
    ("file", "value"), [("config.json", [1]), ("model_index.json", "x"), ("modules.json", {"type": "x"})]
)
def test_a_file_with_another_kind_of_value_is_not_a_checkpoint(folder, file, value):
    made = folder(file, value)
    with pytest.raises(LoadError, match=rf"{file} is not an? (object|list) in JSON\n  fix: "):
        resolve_target(str(made))


def test_a_file_that_cannot_be_read_is_reported(folder, monkeypatch):
    made = folder("config.json", {})

    def read_bytes(_):
        raise PermissionError("permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", read_bytes)
    with pytest.raises(LoadError, match=r"config\.json: cannot be read: permission denied"):
        resolve_target(str(made))


def test_other_libraries_are_recognized_by_their_index(folder):
    modules = [{"type": f"sentence_transformers.models.{name}", "path": ""} for name in ("Transformer", "Pooling")]
    made = folder("modules.json", modules, "st", **{"config.json": {"architectures": ["BertForMaskedLM"]}})
    assert resolve_target(str(made)) == f"sentence-transformer@{made}"
    for pipeline, model in (("StableDiffusion3Pipeline", "sd3"), ("FluxPipeline", "flux"), ("LTXPipeline", "ltx")):
        made = folder("model_index.json", {"_class_name": pipeline}, model)
        assert resolve_target(str(made)) == f"{model}@{made}"


@pytest.mark.parametrize(
    ("file", "fields", "messages"),
    [
        (
            "config.json",
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
            ["T5ForConditionalGeneration is not supported", "nearest: any *ForCausalLM", "fix: use a checkpoint of"],
        ),
        (
            "config.json",
            {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
            ["nearest: SmolVLMForConditionalGeneration (smolvlm", "docs/authoring.md"],
        ),
        (
            "config.json",
            {"architectures": ["Wav2Vec2BertForCTC"]},
            ["Wav2Vec2BertForCTC is not supported", "nearest: Wav2Vec2ForCTC and others that read raw audio (wav2vec2"],
        ),
        (
            "config.json",
            {"architectures": ["MoonshineForConditionalGeneration"]},
            ["nearest: WhisperForConditionalGeneration (whisper"],
        ),
        (
            "config.json",
            {"architectures": ["SpeechT5ForTextToSpeech"]},
            ["SpeechT5ForTextToSpeech is not supported", "nearest: VitsModel (vits, speech)"],
        ),
        (
            "config.json",
            {"architectures": ["BertForSequenceClassification"]},
            ["nearest: BertModel", "fix: for embeddings, save the encoder alone: AutoModel"],
        ),
        (
            "config.json",
            {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "bitsandbytes"}},
            ["quant_method is 'bitsandbytes', supported: `awq`", "fix: use a checkpoint of the model in a supported"],
        ),
        (
            "config.json",
            {"architectures": ["WhisperForConditionalGeneration"], "quantization_config": {"quant_method": "awq"}},
            ["quantized weights of WhisperForConditionalGeneration are not supported", "fix: use the original"],
        ),
        (
            "config.json",
            {"architectures": ["OtherForCausalLM"], "auto_map": {"AutoModel": "modeling.py"}},
            ["trust_remote_code", "fix: use a version of the model for transformers"],
        ),
        ("config.json", {"model_type": "llama"}, ["a config without architectures", "model_type is llama"]),
        ("adapter_config.json", {"peft_type": "LORA"}, ["a LoRA adapter", "POST /v1/adapters"]),
        (
            "model_index.json",
            {"_class_name": "PixArtSigmaPipeline"},
            ["the pipeline PixArtSigmaPipeline is not supported", "nearest: StableDiffusion3Pipeline (sd3"],
        ),
        ("modules.json", [{"type": "x.CLIPModel"}], ["modules CLIPModel is not supported", "nearest: Transformer"]),
        ("modules.json", ["CLIPModel", {}], ["modules CLIPModel, ? is not supported", "nearest: Transformer"]),
        ("other.json", {}, ["is not a checkpoint: it has other.json", "fix: pass a folder with config.json"]),
    ],
)
def test_an_unsupported_checkpoint_is_refused_with_the_nearest_kind(folder, capsys, file, fields, messages):
    made = folder(file, fields)
    with pytest.raises(LoadError) as caught:
        resolve_target(str(made))
    assert all(message in str(caught.value) for message in messages), str(caught.value)
    assert main(["serve", str(made)]) == main(["run", str(made), "hello"]) == 1
    assert capsys.readouterr().err.count(messages[0]) == 2


def test_a_damaged_file_is_named(folder):
    made = folder("config.json", {})
    (made / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config.json is not JSON.*\n  fix: download it again"):
        resolve_target(str(made))


def test_a_gguf_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"no header")
    with pytest.raises(LoadError, match=r"x.gguf is not a complete GGUF file[\s\S]*note: the nearest supported kind"):
        resolve_target(str(tmp_path / "x.gguf"))


# ---------------------------------------------------------------- other arguments
@pytest.mark.parametrize(
    "target", ["smollm2", "sd3@/models/sd3", "whisper@hub:org/name", "a/b.py", "a/b.py:Model", "smol"]
)
def test_models_stay_as_they_are(target):
    assert resolve_target(target) == target


def test_an_installed_name_wins_over_a_folder(folder, monkeypatch, tmp_path):
    made = folder("config.json", {"architectures": ["LlamaForCausalLM"]}, "smollm2")
    monkeypatch.chdir(tmp_path)
    assert resolve_target("smollm2") == "smollm2"
    assert resolve_target("./smollm2") == f"causal-lm@{made}"


def test_the_served_name_is_that_of_the_folder_or_repository(folder):
    made = folder("config.json", {"architectures": ["LlamaForCausalLM"]}, "Qwen2.5-0.5B")
    assert target_name(str(made)) == "Qwen2.5-0.5B"
    assert target_name("org/Qwen2.5-0.5B@main") == target_name("hub:org/Qwen2.5-0.5B") == "Qwen2.5-0.5B"
    assert target_name("/models/SmolLM2.Q4_1.gguf") == "SmolLM2.Q4_1"
    assert target_name("sd3@/models/x") == "sd3"


@pytest.mark.parametrize("target", ["/no/such/folder", "./folder", "a/b/c", "models/x.gguf"])
def test_a_path_without_files_is_named(target):
    with pytest.raises(LoadError, match=r"(no such folder or file|no weights at)[\s\S]*fix: pass a folder"):
        resolve_target(target)


def test_a_manifest_has_checkpoints_relative_to_its_folder(folder, tmp_path, capsys):
    made = folder("config.json", {"architectures": ["LlamaForCausalLM"]}, "tiny")
    (tmp_path / "mstar.toml").write_text('[models.chat]\nmodel = "./tiny"\n')
    assert main(["config", "explain", str(tmp_path / "mstar.toml"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in rows if row["setting"] == "models.chat"] == [f"causal-lm@{made}"]


# ---------------------------------------------------------------- the Hub
def test_a_repository_in_the_cache_needs_no_hub(folder, tmp_path, monkeypatch):
    """The layout of the cache as another machine copied it."""
    made = folder("config.json", {"architectures": ["LlamaForCausalLM"]})
    (made / "model.safetensors").touch()
    repository = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(made, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_target("org/tiny") == "causal-lm@hub:org/tiny"
    with pytest.raises(LoadError, match=r"hub:org/other is not in the cache[\s\S]*fix: check the name"):
        resolve_target("org/other")
