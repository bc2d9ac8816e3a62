"""A file of a package is the one that was tried, or it is refused with what to do."""

import hashlib

import pytest

from mstar.errors import LoadError
from mstar.nn.weights import PackageFile

DIGEST = hashlib.sha256(b"weights").hexdigest()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    folder = tmp_path / "mstar_test_weights-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mstar-test-weights\nVersion: 1.0\n")
    (tmp_path / "w.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def meant(**changes):
    fields = {"package": "mstar-test-weights", "version": "1.0", "file": "w.bin", "sha256": DIGEST}
    return PackageFile(**(fields | changes))


def test_the_file_that_is_meant(installed):
    assert meant().path() == installed / "w.bin"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"package": "mstar-nowhere"}, "the weights are in the package mstar-nowhere"),
        ({"version": "2.0"}, "mstar-test-weights 1.0 is installed, and 2.0 was tried"),
        ({"file": "x.bin"}, "x.bin is missing"),
        ({"sha256": "0" * 64}, f"has the hash {DIGEST}, not 000"),
    ],
)
def test_any_other_is_refused(changes, message):
    with pytest.raises(LoadError) as caught:
        meant(**changes).path()
    assert message in str(caught.value)
    assert "fix: pip install --no-deps mstar-" in str(caught.value)
