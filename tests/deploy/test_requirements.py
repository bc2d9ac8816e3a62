"""deploy/requirements/: the images install only what is pinned there, with hashes, and nothing is missing."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = ROOT / "deploy" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
IMAGES = {"assistant": ["assistant", "media", "grammar", "otel"]}
IMAGES["cluster"] = [*IMAGES["assistant"], "cluster"]


def pins(name):
    """The pinned version of each package that this platform installs."""
    text = (PINS / f"{name}.txt").read_text("utf-8").replace("\\\n", " ")
    versions = {}
    for line in text.splitlines():
        requirement, *hashes = line.split(" --hash=")
        assert hashes, f"{requirement} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64} *", one) for one in hashes)
        one = Requirement(requirement)
        if one.marker is None or one.marker.evaluate():
            [version] = one.specifier
            assert version.operator == "=="
            versions[canonicalize_name(one.name)] = version.version
    return versions


def requirements(extras):
    """What pyproject.toml requires for these extras."""
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            one = Requirement(text)
            if one.name == PROJECT["name"]:
                yield from requirements(one.extras)
            else:
                yield one


@pytest.mark.parametrize("image", IMAGES)
def test_every_requirement_of_an_image_is_pinned(image):
    pinned = pins(image)
    for one in requirements(IMAGES[image]):
        if one.marker is None or one.marker.evaluate():
            version = pinned.get(canonicalize_name(one.name), "0")
            assert one.specifier.contains(version), f"{one}: {version} is pinned. fix: scripts/pin-image"


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_that_a_pinned_package_needs_is_missing(image):
    """The images install without dependencies, so a missing pin would be an import error in production."""
    pinned = pins(image)
    assert pinned.keys() >= {"hatchling"}
    compared = 0
    for name, version in [*pinned.items(), ("torch", importlib.metadata.version("torch"))]:
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        compared += 1
        if name != "torch" and installed.version != version:
            continue
        for text in installed.requires or ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert canonicalize_name(one.name) in pinned, f"{name} needs {one}. fix: scripts/pin-image"
    assert compared > len(pinned) / 2


def test_the_image_installs_nothing_without_a_hash():
    text = (ROOT / "deploy" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert len(installs) == 4
    *checked, own = installs
    assert all("--require-hashes" in one and "--no-deps" in one for one in checked)
    assert own.split() == ["--no-deps", "--no-build-isolation", "."]


def test_weights_are_pinned():
    wanted = [Requirement(line) for line in (PINS / "weights.in").read_text("utf-8").splitlines() if "=" in line]
    assert {canonicalize_name(one.name) for one in wanted} == pins("weights").keys()
