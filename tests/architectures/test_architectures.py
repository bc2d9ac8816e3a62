"""Each architecture of docs/architectures.md has the outcome that the page records."""

import json

import pytest

from tests.architectures.all_architectures import ARCHITECTURES
from tests.architectures.architecture import measure
from tests.models.transcripts import one_thread
from tools.architectures_page import PAGE, RECORDS, read_records, render

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
RECORDED = {record.name: record for record in read_records()}
CASES = [pytest.param(one, id=one.name, marks=[] if one.is_fast else pytest.mark.nightly) for one in ARCHITECTURES]


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


@pytest.mark.parametrize("architecture", CASES)
def test_an_architecture_has_the_recorded_outcome(architecture, tmp_path):
    result, recorded = measure(architecture, tmp_path), RECORDED[architecture.name]
    assert (result.outcome, result.served_by, result.detail) == (recorded.outcome, recorded.served_by, recorded.detail)


def test_every_architecture_is_recorded_once():
    assert [record.name for record in read_records()] == [architecture.name for architecture in ARCHITECTURES]
    assert len(RECORDED) == len(ARCHITECTURES)


def test_the_page_is_that_of_the_records():
    assert PAGE.read_text("utf-8") == render(read_records()), "fix: python -m tools.architectures_page --render"


def test_enough_architectures_are_equal():
    equal = [record for record in RECORDED.values() if record.outcome == "equal"]
    assert len(equal) >= 24
    assert len({record.endpoint for record in equal}) >= 4
    assert not [record.name for record in RECORDED.values() if record.outcome == "differs"]


def test_records_are_lines_of_json():
    assert all(json.loads(line)["version"] for line in RECORDS.read_text("utf-8").splitlines())
