"""Sizes of networks from their configuration: those of the loaded networks."""

import pytest

from mstar.errors import LoadError
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.decoder import Decoder
from mstar.nn.network_size import NetworkSize, kv_size, read_network_size
from tests.nn.lm.model_families import FAMILIES, RECURRENT_FAMILIES, new_network


@pytest.mark.parametrize("name", sorted({*FAMILIES, *RECURRENT_FAMILIES} - {"mamba2"}))
def test_the_kv_cache_has_the_bytes_of_its_configuration(name):
    network = new_network(name)
    decoder = Decoder(network, PagePool(16, 4), swap_bytes=0, is_deterministic=False)
    assert kv_size(network.config).position_bytes == decoder.store.position_bytes


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe"])
def test_a_folder_with_a_configuration_is_enough(tmp_path, name):
    network = new_network(name)
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(tmp_path)
    size = read_network_size(tmp_path)
    assert size.parameters == sum(parameter.numel() for parameter in network.parameters())
    assert (size.dtype, size.weight_bytes) == ("float32", 4 * size.parameters)
    assert size.position_bytes == kv_size(network.config).position_bytes
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(LoadError, match=r"config.json is missing"):
        read_network_size(tmp_path)


def test_a_network_without_a_cache_has_no_positions():
    assert NetworkSize(10, "bfloat16").position_bytes == 0
    assert NetworkSize(10, "bfloat16").weight_bytes == 20
