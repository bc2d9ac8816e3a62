"""Arguments of `mstar gpu-report`. Nothing else is imported before the command runs: others need no library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mstar.cli.gpu_report.sections import PRETEND, SECTIONS


def add_gpu_report(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Try and measure everything that runs on GPUs, and write a report to share."
    report = commands.add_parser("gpu-report", help=text, description=text)
    add = report.add_argument
    add("--device", default="cuda", help=f"Torch device (default cuda), or `{PRETEND}` to rehearse without a GPU.")
    add("--sections", default=",".join(SECTIONS), help=f"Sections to run (default all: {','.join(SECTIONS)}).")
    add("--models", default="", help="Installed models to compare (default: all whose weights are on this machine).")
    add("--vllm-python", default="", help="Interpreter of an environment with vLLM, to measure it in the same run.")
    add("--timeout-s", type=float, default=1800.0, help="Maximum seconds of a section (default 1800).")
    add("-o", "--output", type=Path, default=Path("gpu-report"), help="Folder of the report (default gpu-report).")
    report.set_defaults(run=_run_report)


def _run_report(options: argparse.Namespace) -> None:
    from mstar.cli.gpu_report.command import run_report

    run_report(options)
