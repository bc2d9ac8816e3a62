"""`python -m bench evidence`: how many claims have the runs that they need, and which of them met their target.

Nothing is measured here: the answer follows from the history and from the repository (bench/publication.py).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from bench.claims import Bench, Claim
from bench.history import History
from bench.publication import MIN_RUNS, publish_all
from bench.registry import BENCHES
from bench.repository import ROOT, Repository

NAME = "evidence"


def evidence() -> Claim:
    """The share of claims with enough runs of one clean commit."""
    return claim_evidence({name: bench for name, bench in BENCHES.items() if name != NAME}, ROOT)


def claim_evidence(benches: Mapping[str, Bench], root: Path) -> Claim:
    """The same for these benchmarks."""
    if not Repository(root).has_history():
        print("no run counts: commits cannot be found here\n  fix: git fetch --unshallow, or clone", file=sys.stderr)
    history, publications = History(root), publish_all(benches, root)
    print(f"{'benchmark':20} {'recorded':>8} {'counted':>7}  {'commit':12} {'met':8} verdict")
    for name, one in publications.items():
        commit = one.runs[0].record.commit[:12] if one.runs else "-"
        met = f"{one.met} of {len(one.runs)}"
        print(f"{name:20} {len(history.records(name)):8} {len(one.runs):7}  {commit:12} {met:8} {one.verdict}")
    verdicts = {
        verdict: [name for name, one in publications.items() if one.verdict == verdict]
        for verdict in ("met", "missed", "not enough runs")
    }
    share = sum(one.is_published for one in publications.values()) / len(publications)
    text = f"share of claims that have {MIN_RUNS} or more runs of one clean commit on record"
    return Claim(text, round(share, 3), 1.0, share == 1, verdicts)
