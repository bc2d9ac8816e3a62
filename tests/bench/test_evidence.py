"""The share of claims that have enough runs."""

import json

from bench import evidence
from bench.registry import BENCHES
from tests.bench.toy_history import TOY


def test_the_value_is_the_share_of_claims_with_enough_runs(checkout, capsys):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, 1.0, name="held")
    checkout.add_runs(9.0, 9.0, 9.0, 9.0, 1.0, name="lost")
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, name="few")
    checkout.add_runs(1.0, is_clean=False, name="few")
    claim = evidence.claim_evidence({"held": TOY, "lost": TOY, "few": TOY, "none": TOY}, checkout.root)
    assert (claim.value, claim.target, claim.is_met) == (0.5, 1.0, False)
    assert claim.details == {"met": ["held"], "missed": ["lost"], "not enough runs": ["few", "none"]}
    lines = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    short = checkout.commit[:12]
    assert ["held", "5", "5", short, "5 of 5   met"] in lines
    assert ["lost", "5", "5", short, "1 of 5   missed"] in lines
    assert ["few", "5", "4", short, "4 of 4   not enough runs"] in lines
    assert ["none", "0", "0", "-", "0 of 0   not enough runs"] in lines


def test_missed_targets_are_evidence_too(checkout):
    checkout.add_runs(9.0, 9.0, 9.0, 9.0, 9.0)
    claim = evidence.claim_evidence({"toy": TOY}, checkout.root)
    assert (claim.value, claim.is_met) == (1.0, True)
    assert json.loads(str(claim))["holds"]


def test_a_clone_without_commits_is_reported(checkout, tmp_path, capsys):
    checkout.git("clone", "--quiet", "--depth=1", f"file://{checkout.root}", str(tmp_path / "clone"))
    evidence.claim_evidence({"toy": TOY}, tmp_path / "clone")
    assert "fix: git fetch --unshallow" in capsys.readouterr().err


def test_every_bench_but_this_one_is_looked_at(monkeypatch):
    looked_at = []
    monkeypatch.setattr(evidence, "claim_evidence", lambda benches, root: looked_at.extend(benches))
    evidence.evidence()
    assert {*looked_at} == BENCHES.keys() - {evidence.NAME}
