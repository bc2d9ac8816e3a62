"""Command `mstar gpu-report`: run each section in a process of its own, then write a JSON file and a Markdown page.

An error of a GPU ends the process that met it, so that the other sections still run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys
import time

import msgspec

from mstar import __version__
from mstar.cli.gpu_report.markdown import render_report
from mstar.cli.gpu_report.records import FORMAT, Report, Row, Section, worst
from mstar.cli.gpu_report.sections import PRETEND, SECTIONS
from mstar.config import read_env_variable
from mstar.errors import LoadError, MstarError, format_names
from mstar.launch.gpus.visible import VARIABLE, count_gpus, visible_gpus

TAIL_CHARS = 4000
"""Characters of the output of a failed section that the report has."""


def run_report(options: argparse.Namespace) -> None:
    """Run the sections that the options name, and write the report."""
    names = options.sections.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        raise LoadError(f"no sections {format_names(unknown)}\n  fix: use {format_names(SECTIONS)}")
    if options.device.startswith("cuda") and not visible_gpus(read_env_variable(VARIABLE), count_gpus()):
        fix = f"check the driver and {VARIABLE}, or rehearse with --device {PRETEND}"
        raise LoadError(f"no NVIDIA GPU is visible\n  fix: {fix}")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(f"{options.output} cannot be created: {error.strerror}\n  fix: use another --output") from error
    sections: list[Section] = []
    for name in names:
        print(f"{name}: {SECTIONS[name].question} ...", flush=True)
        sections.append(_run_section(name, options))
        print(f"  {sections[-1].state}, {sections[-1].seconds:.0f} s", flush=True)
        _write(sections, options)  # what there is, if a later section takes the machine down
    failed = [section.name for section in sections if section.state == "failed"]
    if failed:
        raise MstarError(
            f"failed: {format_names(failed)}\n  fix: read {options.output}/report.md, and attach it to an issue"
        )


def _run_section(name: str, options: argparse.Namespace) -> Section:
    """Run a section in a process of its own."""
    rows_file = options.output / f"{name}.rows.json"
    rows_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mstar.cli.gpu_report.section_main", name, str(rows_file), options.device]
    command += [f"--models={options.models}", f"--vllm-python={options.vllm_python}"]
    started_at, error = time.monotonic(), ""
    log_file = options.output / f"{name}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(options.timeout_s)
            error = f"exited with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            error = f"took longer than {options.timeout_s:g} s"
        finally:
            if process.returncode is None:  # with its server, which would keep the memory of the GPU
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    rows = msgspec.json.decode(rows_file.read_bytes(), type=list[Row]) if rows_file.exists() else []
    rows_file.unlink(missing_ok=True)
    if error:
        error = f"{error}\n{log_file.read_text(errors='replace')[-TAIL_CHARS:]}"
    return Section(
        name=name,
        question=SECTIONS[name].question,
        state="failed" if error else worst([row.state for row in rows]),
        seconds=round(time.monotonic() - started_at, 1),
        rows=rows,
        error=error,
    )


def _write(sections: list[Section], options: argparse.Namespace) -> None:
    report = Report(
        format=FORMAT,
        created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S"),
        mstar=__version__,
        device=options.device,
        is_pretend=options.device.startswith(PRETEND),
        sections=sections,
    )
    (options.output / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    (options.output / "report.md").write_text(render_report(report))
