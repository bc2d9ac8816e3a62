"""Registry of adapters: several front ends share it, and a placement fills it."""

import tomllib

import pytest

from mstar.config import HttpLimits, RuntimeConfig, ServerConfig
from mstar.errors import LoadError, PlacementError
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import load_planned_models
from mstar.requests import Adapter
from mstar.server.access.api_keys import ApiKeys
from mstar.server.adapters.registry import AdapterRegistry
from mstar.server.frontends.create_state import create_state
from tests.nn.lm.adapters.peft_folders import write_adapter
from tests.nn.lm.model_families import network

ONE, OTHER = Adapter("one", "/one", "1"), Adapter("one", "/other", "2")


def test_front_ends_share_the_registry(tmp_path):
    first, second, alone = AdapterRegistry(), AdapterRegistry(), AdapterRegistry()
    first.add("lm", ONE)
    for registry in (first, second):
        registry.share(tmp_path / "adapters.json")
    assert second.get("lm", "one") == ONE
    assert second.add("lm", OTHER) == ONE, "the name is taken"
    assert first.remove("lm", "one") == ONE
    assert second.get("lm", "one") is None
    assert second.remove("lm", "one") is None
    assert second.add("lm", OTHER) == OTHER == first.get("lm", "one")
    later = AdapterRegistry()  # of a front end that was restarted
    later.add("lm", ONE)
    later.share(tmp_path / "adapters.json")
    assert dict(later.of_model("lm")) == {"one": OTHER}
    assert dict(alone.of_model("lm")) == {}


def test_a_placement_has_adapters(tmp_path):
    adapter = write_adapter(tmp_path / "sql", network("llama"), 1)
    text = f'[place]\nlm = "w"\n[components.lm]\ndtype = "float32"\nadapters = {{ sql = "{adapter.path}" }}'
    models = load_planned_models({"smollm2": "smollm2"}, {"smollm2": text})
    state = create_state(models, ApiKeys(), ServerConfig(), HttpLimits(), RuntimeConfig(), {})
    assert dict(state.adapters.of_model("smollm2")) == {"sql": adapter}
    assert state.find_model("smollm2:sql").sampling(temperature=0).adapter == adapter
    models["smollm2"].apply_settings("lm")
    component = models["smollm2"].model.lm
    assert (dict(component.adapters), dict(component.operator_settings)) == (
        {"sql": adapter.path},
        {"dtype": "float32"},
    )


def test_adapters_of_a_placement_that_cannot_be_used(tmp_path):
    for value in ("{ sql = 1 }", '{ sql = "" }', '"sql"'):
        with pytest.raises(PlacementError, match="adapters"):
            parse_placement(tomllib.loads(f"[components.lm]\nadapters = {value}"))
    text = f'[components.lm.adapters]\nsql = "{tmp_path}"'
    models = load_planned_models({"smollm2": "smollm2"}, {"smollm2": text})
    with pytest.raises(LoadError, match="cannot be read"):
        create_state(models, ApiKeys(), ServerConfig(), HttpLimits(), RuntimeConfig(), {})
    models = load_planned_models({"turns": "turn-detector"}, {"turns": text.replace(".lm.", ".turns.")})
    with pytest.raises(LoadError, match="does not support the setting `adapters`"):
        models["turns"].apply_settings("turns")
