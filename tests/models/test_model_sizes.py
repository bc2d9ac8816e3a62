"""Size limits of model files, and of model families relative to another system."""

import pytest

from tools.model_sizes import FAMILIES, MAX_FILE_LINES, MAX_SHARE


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.folder)
def test_model_files_are_short(family):
    assert {name: family.lines[name] for name in family.files if family.lines[name] > MAX_FILE_LINES} == {}


def test_all_families_together_have_few_of_the_reference_lines():
    both = [one for one in FAMILIES if one.reference_lines]
    assert sum(one.total for one in both) <= MAX_SHARE * sum(one.reference_lines for one in both)
