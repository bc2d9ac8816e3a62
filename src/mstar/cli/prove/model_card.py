"""A model card of a proven model, as a Markdown page."""

from __future__ import annotations

import inspect
import platform
from importlib.metadata import version

from mstar.cli.prove.proof import Proof
from mstar.graph import ir


def render_card(proof: Proof) -> str:
    """The page: what the model is, what was shown, and how fast it is on this machine."""
    subject = proof.subject
    model = type(subject.model)
    lines = [f"# {model.__name__}", "", inspect.getdoc(model) or "", ""]
    lines += ["| walk | calls | emits |", "|---|---|---|"]
    for name, graph in subject.graphs.items():
        nodes = list(ir.flat(graph.body))
        calls = sorted({f"`{node.component}.{node.op}`" for node in nodes if isinstance(node, ir.Call)})
        kinds = sorted({node.kind for node in nodes if isinstance(node, ir.Emit)})
        lines.append(f"| {name} | {', '.join(calls)} | {', '.join(kinds)} |")
    where = f"mstar {version('mstar-serve')}, Python {platform.python_version()}, {platform.machine()}"
    lines += [
        "",
        f"## Shown by `mstar prove` ({where})",
        "",
        "| stage | state | seconds | shown |",
        "|---|---|---|---|",
    ]
    for result in proof.results:
        detail = result.detail.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {result.name} | {result.state} | {result.seconds:g} | {detail} |")
    if proof.speed is not None:
        speed = proof.speed
        lines += ["", "| speed on this machine, one request at a time | |", "|---|---|"]
        lines += [f"| requests per second | {speed.requests_per_second:.1f} |"]
        lines += [f"| first output, median | {speed.first_output_ms:.1f} ms |"]
        lines += [f"| whole request, median | {speed.duration_ms:.1f} ms |"]
    return "\n".join(lines) + "\n"
