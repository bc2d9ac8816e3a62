"""Process of one section: `python -m mstar.cli.gpu_report.section_main NAME FILE DEVICE`. Writes its rows to the file.

Rows are written as they are found, so that those before a crash are kept.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SECTIONS, SectionOptions


def main(arguments: list[str]) -> None:
    """Run a section."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("file", type=Path)
    parser.add_argument("device")
    parser.add_argument("--models", default="")
    parser.add_argument("--vllm-python", default="")
    options = parser.parse_args(arguments)
    models = tuple(filter(None, options.models.split(",")))
    rows: list[Row] = []
    for row in import_module(SECTIONS[options.name].module).rows(
        SectionOptions(options.device, models, options.vllm_python)
    ):
        print(row, flush=True)
        rows.append(row)
        options.file.write_bytes(msgspec.json.encode(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
