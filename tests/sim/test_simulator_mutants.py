"""The mutants of `python -m bench sim` match the source."""

import pytest

from bench.mutants import ROOT
from bench.simulator import load_mutants

MUTANTS = load_mutants()


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 24


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_each_mutant_fits_the_source(mutant):
    assert (ROOT / "src/mstar" / mutant.file).read_text().count(mutant.old) == 1
