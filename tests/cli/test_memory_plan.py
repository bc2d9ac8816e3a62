"""`mstar plan MODEL --device-memory SIZE`: what fits on a device, without weights and without a device."""

import json
import subprocess
import sys

import pytest

from mstar.cli import main
from mstar.cli.memory_plan import find_sizes, parse_bytes, plan_devices
from mstar.errors import LoadError
from mstar.nn.published_sizes import PUBLISHED
from mstar.plan.placement import parse_placement

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "bfloat16",
}


def plan(capsys, *arguments):
    status = main(["plan", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_sizes_are_read_with_decimal_and_binary_units():
    assert [parse_bytes(text) for text in ("80GB", "24GiB", "1.5 gb", "500000")] == [
        80_000_000_000,
        24 * 2**30,
        1_500_000_000,
        500_000,
    ]
    for wrong in ("80 G", "many", "-1GB", "0GB", ""):
        with pytest.raises(ValueError, match="is not a size"):
            parse_bytes(wrong)


def test_a_published_model_is_planned_by_name(capsys):
    status, out, err = plan(capsys, "llama-3.1-8b", "--device-memory", "80GB")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "device: 68.0 GB can be used",
        "  component  parameters  dtype     weights  KV per token  pages   positions  requests of 4,096 positions",
        "  lm         8.03 B      bfloat16  16.1 GB  131.1 kB      24,766  396,256    96",
        "  weights 16.1 GB, rest 51.9 GB, less activations",
    ]


def test_states_without_pages_have_positions_only(capsys):
    out = plan(capsys, "vjepa2-ac", "--device-memory", "24GB")[1]
    assert "196.6 kB      -      76,944     18\n" in out


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_rest_of_the_share_is_divided_between_the_caches(name):
    (device,) = plan_devices(find_sizes(name), 10**12, None)
    used = [component.pages * 16 * component.size.position_bytes for component in device.components if component.pages]
    assert used
    assert max(used) - min(used) < 10**8
    assert 0 <= device.limit - device.weight_bytes - sum(used) < 10**8


def test_a_checkpoint_folder_needs_its_configuration_only(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    outputs = [plan(capsys, target, "--device-memory", "1MB") for target in (tmp_path, tmp_path / "config.json")]
    assert outputs[0] == outputs[1]
    status, out, err = outputs[0]
    assert (status, err) == (0, "")
    assert "  lm         0.0248 M    bfloat16  49.6 kB  128 bytes" in out


def test_a_model_that_does_not_fit_is_refused_with_figures(capsys):
    status, out, err = plan(capsys, "qwen3-30b-a3b", "--device-memory", "24GB")
    assert status == 1
    assert "30.53 B" in out
    assert err.splitlines() == [
        "device: 61.1 GB are needed for lm (weights 61.1 GB), and 20.4 GB can be used",
        "  fix: use a larger device or share (`memory`), or place components on other workers",
    ]


PLACEMENT = """
[place]
thinker = "gpu0"
audio_encoder = "gpu1"
vision_encoder = "gpu1"
talker = ["gpu1", "gpu2"]
"predictor.predict_frame" = "gpu1"
vocoder = "cpu"
processor = "cpu"

[workers.gpu0]
device = "cuda:0"
memory = {share}

[workers.gpu1]
device = "cuda:1"

[workers.gpu2]
device = "cuda:2"
"""


def test_a_placement_is_planned_for_each_device(tmp_path, capsys):
    file = tmp_path / "place.toml"
    file.write_text(PLACEMENT.format(share=0.9))
    status, out, err = plan(capsys, "qwen3-omni", "--device-memory", "80GB", "--placement", file)
    assert (status, err) == (0, "")
    workers = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert workers == [
        "gpu0 on cuda:0: 72.0 GB can be used",
        "gpu1 on cuda:1: 68.0 GB can be used",
        "gpu2 on cuda:2: 68.0 GB can be used",
    ]
    assert "vocoder" not in out


def test_a_placement_that_does_not_fit_is_refused(tmp_path, capsys):
    file = tmp_path / "place.toml"
    file.write_text(PLACEMENT.format(share=0.5))
    status, _, err = plan(capsys, "qwen3-omni", "--device-memory", "80GB", "--placement", file)
    assert status == 1
    assert err.startswith("gpu0 on cuda:0: 61.1 GB are needed for thinker (weights 61.1 GB), and 40.0 GB can be used\n")


def test_the_dtypes_of_a_placement_are_planned(tmp_path, capsys):
    file = tmp_path / "place.toml"
    file.write_text(
        '[place]\nlm = "gpu0"\n[workers.gpu0]\ndevice = "cuda:0"\n[components.lm]\nkv_cache_dtype = "fp8"\n'
    )
    out = plan(capsys, "llama-3.1-8b", "--device-memory", "80GB", "--placement", file)[1]
    assert "8.03 B      bfloat16  16.1 GB  65.54 kB      49,533  792,528    193" in out
    file.write_text(file.read_text() + 'dtype = "float32"\n')
    out = plan(capsys, "llama-3.1-8b", "--device-memory", "80GB", "--placement", file)[1]
    assert "8.03 B      float32  32.1 GB  65.54 kB" in out


def test_every_component_with_weights_must_be_placed():
    placement = parse_placement({"place": {"thinker": "a"}})
    with pytest.raises(LoadError, match="no rule for `audio_encoder`, `vision_encoder`, `talker`"):
        plan_devices(find_sizes("qwen3-omni"), 10**12, placement)


def test_a_placement_without_devices_has_nothing_to_plan(tmp_path, capsys):
    file = tmp_path / "place.toml"
    file.write_text('[place]\nlm = "a"\n')
    status, _, err = plan(capsys, "llama-3.1-8b", "--device-memory", "80GB", "--placement", file)
    assert status == 1
    assert "no worker with a device has weights\n  fix: add `device`" in err


def test_other_models_are_refused_with_the_names_that_are_known(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["WhisperForConditionalGeneration"]}))
    assert "are not known without its weights" in plan(capsys, tmp_path, "--device-memory", "80GB")[2]
    status, _, err = plan(capsys, "smollm2", "--device-memory", "80GB")
    assert status == 1
    assert err.startswith("the sizes of smollm2 are not known without its weights\n  fix: pass one of `llama-3.1-8b`")
    with pytest.raises(SystemExit):
        main(["plan", "llama-3.1-8b", "--device-memory", "much"])
    assert "is not a size" in capsys.readouterr().err


def test_a_published_model_needs_no_tensor_library():
    code = "import sys; from mstar.cli import main; main(['plan', 'qwen3-omni', '--device-memory', '80GB'])"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0
