"""The wheel has every file of the package, and runs models without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def package_files():
    """Files of the package, by their path in the wheel."""
    files = [file for file in (SOURCE / "mstar").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {file.relative_to(SOURCE).as_posix(): file.read_bytes() for file in files}


def check_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if name.startswith("mstar/")}
    expected = package_files()
    assert expected.keys() - packed.keys() == set(), "the wheel lacks files"
    assert packed == expected
    for needed in ("mstar/studio/static/index.html", "mstar/nn/native/kernels.cpp", "mstar/py.typed"):
        assert needed in packed


@pytest.mark.slow
def test_the_wheel_has_every_file(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    check_files(wheel)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_wheel_works_outside_the_repository():
    done = subprocess.run(
        ["scripts/build-wheel"],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "the wheel installs and checks a model in an empty environment" in output
    assert "The capital of France is Paris." in output
    assert output.count("no C++ compiler, so steps are slower; fix: install g++\n") == 1
    assert output.count("What is the capital of France?") == 2, "one transcript with native kernels, one without"
    (wheel,) = (ROOT / "dist").glob("*.whl")
    check_files(wheel)
