"""Planned models: the settings that a placement has for components."""

import pytest

from mstar.errors import LoadError
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.planned_model import PlannedModel, load_planned_models
from tests.worker.worker_harness import PLANS, Lm, Walks


@pytest.fixture
def supported(monkeypatch):
    monkeypatch.setattr(Lm, "supported_settings", ("dtype", "precision"))


def test_components_get_the_settings_of_the_placement(supported):
    planned = PlannedModel(Walks(), PLANS["m"], settings={"b": {"dtype": "float32"}})
    for name in ("a", "b"):
        planned.apply_settings(name)
    settings = {name: dict(component.operator_settings) for name, component in planned.model.components().items()}
    assert settings == {"a": {}, "b": {"dtype": "float32"}}


def test_a_setting_that_a_component_does_not_support_is_refused(supported):
    planned = PlannedModel(Walks(), PLANS["m"], settings={"b": {"quantization": "int8"}})
    expected = r"the component b \(Lm\) does not support the setting `quantization`; it supports `dtype`, `precision`"
    with pytest.raises(LoadError, match=expected):
        planned.apply_settings("b")
    with pytest.raises(LoadError, match=expected):
        InProcessLauncher({"m": planned}).start()


def test_settings_are_read_from_the_text_of_a_placement():
    text = '[components.lm]\ndtype = "float32"'
    planned = load_planned_models({"m": "examples/orpheus.py"}, {"m": text})["m"]
    assert planned.settings == {"lm": {"dtype": "float32"}}
