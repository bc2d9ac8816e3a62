"""Writes docs/settings.md from the config classes: `python -m tools.settings_page`. A test compares it."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from mstar.cli.serving.settings import Setting, settings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
INTRO = """# Settings

For operators of `mstar serve`: every setting, its flag, environment variable, default and meaning. Generated from the
config classes in `src/mstar/config.py` by `python -m tools.settings_page`.

A setting is read from, in this order: the flag of `mstar serve`, the environment variable, the line in the server's
TOML file, the default. `mstar config explain mstar.toml` prints each value and where it came from; secrets are never
printed.
"""
HEADER = "| key | flag | variable | default | meaning |\n|---|---|---|---|---|\n"
TABLES = {
    "server": "Process and network",
    "slo": "Default service-level objective of requests without an `Mstar-SLO` header",
    "limits": "Limits and timeouts",
    "api_keys": "API keys and rate limits",
}


def render() -> str:
    """The page as Markdown."""
    parts = [INTRO]
    for table, group in groupby(settings(), key=lambda setting: setting.table):
        parts.append(f"\n## `[{table}]`\n\n{TABLES[table]}.\n\n{HEADER}")
        parts += [_row(setting) for setting in group]
    return "".join(parts)


def _row(setting: Setting) -> str:
    default = setting.format(setting.default)
    cells = f"`{setting.name}` | `--{setting.flag}` | `MSTAR_{setting.variable}` | {f'`{default}`' if default else ''}"
    purpose = setting.purpose[:1].upper() + setting.purpose[1:].rstrip(".")
    return f"| {cells} | {purpose.replace('|', chr(92) + '|')}. |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
    sys.exit(0)
