"""Finding a model by a path or by an installed name."""

from __future__ import annotations

import sys

import pytest

from mstar import LoadError, Model
from mstar.walk.load import default_model_name, load_model

ONE = "from mstar import Model\n\nclass One(Model):\n    pass\n"
TWO = ONE + "\nclass Two(One):\n    def __init__(self, size=3, *args, **kwargs):\n        self.size = size\n"


@pytest.fixture(autouse=True)
def modules():
    """Leaves no module of a test behind."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda text, name="my_model.py": (tmp_path / name).write_text(text, "utf-8")


def refused(target):
    with pytest.raises(LoadError) as caught:
        load_model(target)
    return str(caught.value)


def test_a_file_with_one_model(write):
    write(ONE)
    model = load_model("my_model.py")
    assert (type(model).__name__, isinstance(model, Model)) == ("One", True)


def test_a_model_by_its_name(write):
    write(TWO)
    assert load_model("my_model.py:Two").size == 3
    assert type(load_model("my_model.py:One")).__name__ == "One"


def test_where_its_weights_are_may_be_given(write):
    write(TWO.replace("size=3", "weights='hub:its/own'").replace("self.size = size", "self.size = weights"))
    assert load_model("my_model.py:Two").size == "hub:its/own"
    assert load_model("my_model.py:Two@/models/two").size == "/models/two"
    assert load_model("my_model.py:Two@hub:an/other").size == "hub:an/other"
    assert default_model_name("my_model.py:Two@/models/two") == "my_model"
    assert refused("my_model.py:One@/models/one") == (
        "my_model.py:One@/models/one: One does not accept other weights\n"
        "  fix: use my_model.py:One, without @/models/one"
    )


def test_a_model_may_import_what_lies_beside_it(write):
    write("WORD = 'beside'\n", "my_word.py")
    write("from my_word import WORD\n" + TWO.replace("size=3", "size=WORD"))
    path = list(sys.path)
    assert load_model("my_model.py:Two").size == "beside"
    assert sys.path == path


def test_a_file_that_is_not_there(write):
    write(ONE)
    assert refused("my_modle.py") == (
        "my_modle.py: no such file (did you mean `my_model.py`?)\n  fix: pass the path of a model's .py file"
    )
    assert refused("nowhere/x.py") == "nowhere/x.py: no such file\n  fix: pass the path of a model's .py file"


def test_a_name_that_is_not_there(write):
    write(TWO)
    assert refused("my_model.py:Too") == (
        "my_model.py: no model `Too` (did you mean `Two`?)\n  fix: use one of `One`, `Two`"
    )


def test_a_file_with_several_models_or_none(write):
    write(TWO)
    assert refused("my_model.py") == (
        "my_model.py: several models: `One`, `Two`\n  fix: name one, for example my_model.py:One"
    )
    write("from mstar import Model\n")
    assert refused("my_model.py").endswith(
        "no model in this file\n  fix: define class MyModel(mstar.Model) with a walk"
    )


def test_a_file_that_fails(write):
    write("import no_such_thing\n")
    assert refused("my_model.py") == (
        "my_model.py: import failed: ModuleNotFoundError: No module named 'no_such_thing'\n"
        "  fix: install `no_such_thing` in this environment, or see my_model.py:1"
    )
    assert not [name for name in sys.modules if "my_model" in name]


def test_a_model_that_cannot_be_made(write):
    write(ONE.replace("pass", "def __init__(self):\n        self.size = 1 / 0"))
    assert refused("my_model.py") == (
        "my_model.py: One() failed: ZeroDivisionError: division by zero\n  fix: see my_model.py:5"
    )


def test_a_model_that_needs_arguments(write):
    write(ONE.replace("pass", "def __init__(self, size, *, depth): ..."))
    expected = "my_model.py: One() has parameters without a default: `size`, `depth`\n  fix: give them defaults"
    assert refused("my_model.py") == expected


def test_an_installed_name(tmp_path, monkeypatch):
    package = tmp_path / "mstar_test_dist-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mstar-test-dist\nVersion: 1.0\n")
    points = "[mstar.models]\nsphinx = mstar_test_dist:One\nwrong = mstar_test_dist:WORD\n"
    (package / "entry_points.txt").write_text(points)
    (tmp_path / "mstar_test_dist.py").write_text(ONE + "\nWORD = 'x'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(load_model("sphinx")).__name__ == "One"
    assert refused("sfinx").startswith("no installed model `sfinx` (did you mean `sphinx`?); installed: ")
    assert refused("wrong") == (
        "the entry point `wrong` is 'x', not a Model\n  fix: point it at a subclass of mstar.Model"
    )
