"""The bugs of `python -m bench mutants` match the source, follow the rule of their page, and are counted correctly."""

import ast
from collections import Counter

import pytest

from bench.mutants import (
    BEGIN,
    END,
    MIN_BUGS,
    MIN_BUGS_PER_PACKAGE,
    OPERATORS,
    PAGE,
    PLANTED,
    ROOT,
    RUNTIME_PACKAGES,
    Mutant,
    are_targets_met,
    format_results,
    load_mutants,
)

MUTANTS = load_mutants()
AUDIT_BUGS = {f"B{number:02}" for number in range(1, 36)} - {"B07", "B10", "B12"} | {"S1", "S2", "S3"}
"""The bugs of the independent audit of commit dfb2490, without three that have no effect."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.package}: {mutant.what}")
def test_each_bug_fits_the_source(mutant):
    text = (ROOT / "src/mstar" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert ast.unparse(ast.parse(text.replace(mutant.old, mutant.new))) != ast.unparse(ast.parse(text))
    assert mutant.operator in OPERATORS
    assert mutant.tests
    assert [path for path in mutant.tests if not (ROOT / path.partition("::")[0]).exists()] == []


def test_no_bug_is_listed_twice():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS)


def test_each_file_lists_the_bugs_of_its_package():
    assert {path.stem for path in PLANTED.glob("*.toml")} == {mutant.package for mutant in MUTANTS}


def test_there_are_enough_bugs():
    assert len(MUTANTS) >= MIN_BUGS
    totals = Counter(mutant.package for mutant in MUTANTS)
    assert min(totals[package] for package in RUNTIME_PACKAGES) >= MIN_BUGS_PER_PACKAGE
    assert min(Counter(mutant.operator for mutant in MUTANTS)[operator] for operator in OPERATORS) >= 10


def test_the_bugs_of_the_audit_are_listed():
    assert {mutant.audit for mutant in MUTANTS} - {""} == AUDIT_BUGS


def planted(package, count):
    return [Mutant(f"{package}/a.py", f"{package} {number}", "a", "b") for number in range(count)]


def test_the_targets_hold_in_total_and_in_each_package():
    mutants = [mutant for package in RUNTIME_PACKAGES for mutant in planted(package, 20)]
    assert are_targets_met(mutants, [])
    assert are_targets_met(mutants, mutants[:4])
    assert not are_targets_met(mutants, mutants[:5])
    assert are_targets_met(mutants, mutants[::10])
    assert not are_targets_met(mutants, [*mutants[::10], mutants[1]])
    assert not are_targets_met(mutants[20:], [])


def test_results_name_the_survivors():
    mutants = [*planted("wire", 3), *planted("nn", 2)]
    text = format_results(mutants, mutants[:1])
    assert "| wire | 2 | 3 |" in text
    assert "| nn | 2 | 2 |" in text
    assert "- `wire/a.py`: wire 0" in text


def test_the_page_has_a_place_for_the_results():
    text = PAGE.read_text("utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)
