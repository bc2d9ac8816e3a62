"""Faults that cannot be injected leave the server as it was."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from bench.game_day.faults import FAULTS
from bench.game_day.schedule import PlannedFault


@pytest.mark.parametrize("name", ["fill-disk", "slow-disk"])
def test_a_fault_of_a_worker_that_does_not_run_changes_no_file(name, tmp_path):
    weights = tmp_path / "weights"
    weights.write_bytes(b"intact")
    server = SimpleNamespace(
        folder=tmp_path,
        weights=weights,
        processes=lambda: {"front": os.getpid()},
        open_run_directory=lambda: pytest.fail("the run directory would be filled"),
    )
    fault = FAULTS[name](server, None, PlannedFault(1.0, name, "server", 2.0))
    with pytest.raises(ProcessLookupError, match="t1 does not run"):
        asyncio.run(fault.apply())
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
    assert weights.read_bytes() == b"intact"
