"""Model files stay short, and families a small part of what they are elsewhere."""

import pytest

from tools.families import FAMILIES, LONGEST, SHARE


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.folder)
def test_model_files_are_short(family):
    assert {name: family.lines[name] for name in family.files if family.lines[name] > LONGEST} == {}


def test_all_families_together_are_a_quarter_of_what_they_are_elsewhere():
    both = [one for one in FAMILIES if one.elsewhere]
    assert sum(one.total for one in both) * SHARE <= sum(one.elsewhere for one in both)
