"""Section `machine`: the checks of `mstar doctor`, the GPUs, and the libraries that use them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from mstar.cli.doctor import CHECKS, FAIL
from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions

PACKAGES = ("torch", "triton", "flashinfer-python", "transformers", "diffusers", "onnxruntime-gpu", "vllm")


def rows(options: SectionOptions) -> Iterator[Row]:
    """What is installed."""
    from mstar.nn.devices import describe_device, open_device

    yield Row(what="device", note=describe_device(open_device(options.device)))
    for package in PACKAGES:
        try:
            yield Row(what=package, note=metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Row(what=package, state="skipped", note="not installed")
    for check in CHECKS:
        for result in check():
            note = f"{result.message}; fix: {result.fix}" if result.fix else result.message
            yield Row(what=f"doctor: {result.check}", state="failed" if result.state == FAIL else "ok", note=note)
