"""Every `pip install` that a page or an error message shows names extras, packages and versions that exist."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "api").glob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
COMMAND = re.compile(r"pip install ((?:-e )?(?:--no-deps )?[^\n`#&|]*)")
WORD = re.compile(r"(?:-e )?'?((?:mstar-serve|\.)\[[\w,-]+\])'?|'?([A-Za-z][\w.-]+)(==[\w.]+|>=[\w.]+)?'?")


def install_commands():
    for path in (*PAGES, *SOURCES):
        for match in COMMAND.finditer(path.read_text("utf-8")):
            if "{" not in match[1]:  # a command that is put together has its own test
                yield path, match[1].strip()


COMMANDS = [(path.relative_to(ROOT), text) for path, text in install_commands()]


def names_in(text):
    """The extras, and the packages with their versions, of a command; its words after a sentence are left out."""
    text = re.sub(r'"\$\(ls dist/\*\.whl\)(\[[\w,-]+\])"', r".\1", text)
    arguments = re.split(r"[\"“”)(;]|, | on the| in the| of the| from ", text)[0].replace("--no-deps", "").split()
    extras, packages = [], []
    for argument in arguments:
        if argument.startswith("-"):
            continue
        if (match := WORD.fullmatch(argument.rstrip(".,:"))) is not None:
            extras += match[1].partition("[")[2].rstrip("]").split(",") if match[1] else []
            packages += [(match[2], match[3] or "")] if match[2] else []
    return extras, packages


def required_packages():
    """Names of all packages that an extra requires."""
    return {re.match(r"[\w.-]+", one)[0].lower() for extra in EXTRAS.values() for one in extra} | {
        "torch",
        "websockets",
    }


def test_the_commands_are_found():
    assert (Path("README.md"), '"$(ls dist/*.whl)[assistant]"') in COMMANDS
    assert names_in('"$(ls dist/*.whl)[assistant]"') == names_in("-e '.[assistant]'") == (["assistant"], [])
    assert names_in("--no-deps snac==1.2.1") == ([], [("snac", "==1.2.1")])
    assert any(path.parts[0] == "src" for path, _ in COMMANDS)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=lambda value: str(value)[:40])
def test_an_install_command_names_what_exists(path, command):
    extras, packages = names_in(command)
    assert set(extras) <= EXTRAS.keys()
    for package, version in packages:
        if version.startswith("=="):  # pinned weights: those that the tests use
            assert metadata.version(package) == version[2:]
        else:
            assert package.lower() in required_packages()


def test_extras_that_code_names_exist():
    """Messages that are put together: MissingExtra, doctor and the sources of weights."""
    for path in SOURCES:
        text = path.read_text("utf-8")
        for match in re.finditer(r"_requiring_extra\(\"([\w-]+)\"|from_package\([^()]*\"([\w-]+)\"\)", text):
            assert (match[1] or match[2]) in EXTRAS, path


def test_the_readme_installs_structured_output_and_mp3():
    (installed,) = EXTRAS["assistant"]
    included = re.search(r"\[([\w,]+)\]", installed)[1].split(",")
    assert {"grammar", "media", "serve", "transformers", "gguf", "onnx"} <= set(included)
