"""The bugs that `python -m bench sim` plants have to fit the source."""

import pytest

from bench.mutants import ROOT
from bench.simulator import planted

PLANTED = planted()


def test_there_are_enough():
    assert len(PLANTED) >= 24


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda mutant: mutant.what)
def test_each_fits(mutant):
    assert (ROOT / "src/mstar" / mutant.file).read_text().count(mutant.old) == 1
