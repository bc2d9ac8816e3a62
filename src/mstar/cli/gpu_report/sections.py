"""The sections of a report by name. Each is a module that is imported in the process of the section only."""

from __future__ import annotations

from dataclasses import dataclass

PRETEND = "pretend"
"""Device of a rehearsal (`mstar.nn.pretend_gpu`)."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A section: its question, and the module whose `rows` answers it."""

    question: str
    module: str


@dataclass(frozen=True, slots=True)
class SectionOptions:
    """Options of the command."""

    device: str
    models: tuple[str, ...]
    vllm_python: str

    @property
    def is_rehearsal(self) -> bool:
        """Whether there is no GPU, so that figures mean nothing and can be taken of little work."""
        return self.device.startswith(PRETEND)


SECTIONS = {
    "machine": Subject("What is installed on this machine?", "mstar.cli.gpu_report.machine"),
    "decoders": Subject("Do captured decode steps write the tokens of the CPU?", "mstar.cli.gpu_report.decoders"),
    "families": Subject("Do the installed models answer as on the CPU?", "mstar.cli.gpu_report.families"),
    "ranks": Subject("Do two ranks write the tokens of one process?", "mstar.cli.gpu_report.ranks"),
    "transfers": Subject("How fast do tensors leave the device?", "mstar.cli.gpu_report.transfers"),
    "engine": Subject("How many tokens per second does a worker write?", "mstar.cli.gpu_report.engine"),
    "server": Subject("What do clients of the server measure?", "mstar.cli.gpu_report.server"),
}
