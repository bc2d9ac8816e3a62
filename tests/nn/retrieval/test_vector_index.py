"""The IVF index: equal to brute force on all lists, within its memory budget, with lists read on demand or ahead."""

import json

import numpy as np
import pytest

from mstar.errors import LoadError
from mstar.nn.retrieval.vector_index import MISSING, VectorIndex, read_header, write_index

PASSAGES, DIMS, LISTS = 600, 32, 12
ROW_BYTES = DIMS * 4


def unit_vectors(count, seed):
    vectors = np.random.default_rng(seed).standard_normal((count, DIMS)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


VECTORS, QUERIES = unit_vectors(PASSAGES, 1), unit_vectors(24, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("index")
    write_index(path, VECTORS, "random", LISTS)
    return path


@pytest.fixture
def open_index(folder):
    opened = []

    def open_one(budget_bytes=None):
        opened.append(VectorIndex(folder, budget_bytes))
        return opened[-1]

    yield open_one
    for index in opened:
        index.close()


def largest_list_bytes(index):
    return int(np.diff(index._bounds).max()) * ROW_BYTES


def test_all_lists_give_what_brute_force_gives(open_index):
    scores, numbers = open_index().search(QUERIES, 7, probes=LISTS)
    products = QUERIES @ VECTORS.T
    expected = np.argsort(-products, axis=1)[:, :7]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(products, expected, 1), atol=1e-6)


def test_few_lists_find_the_passage_itself(open_index):
    index = open_index()
    _, numbers = index.search(VECTORS[:50], 1, probes=1)
    np.testing.assert_array_equal(numbers[:, 0], np.arange(50))


def test_a_batch_finds_what_each_query_finds_alone(open_index):
    index = open_index()
    together = index.search(QUERIES, 5, probes=3)
    alone = [index.search(QUERIES[row : row + 1], 5, probes=3) for row in range(len(QUERIES))]
    for number in range(2):
        np.testing.assert_array_equal(together[number], np.concatenate([one[number] for one in alone]))


def test_a_row_without_enough_passages_is_filled(open_index):
    scores, numbers = open_index().search(QUERIES[:1], PASSAGES + 1, probes=LISTS)
    assert sorted(numbers[0, :-1].tolist()) == list(range(PASSAGES))
    assert (numbers[0, -1], scores[0, -1]) == (MISSING, -np.inf)


def test_lists_are_read_on_demand_once(open_index):
    index = open_index()
    assert index.cache.resident_bytes == 0
    index.search(QUERIES[:1], 5, probes=3)
    assert index.cache.counters["misses"] == 3
    read = index.cache.resident_bytes
    assert 0 < read < index.header.vector_bytes
    index.search(QUERIES[:1], 5, probes=3)
    assert (index.cache.counters["misses"], index.cache.counters["hits"]) == (3, 3)
    assert index.cache.resident_bytes == read


@pytest.mark.parametrize("probes", [2, LISTS])
def test_the_budget_is_never_exceeded(open_index, probes):
    full = open_index()
    budget = max(full.header.vector_bytes // 4, largest_list_bytes(full))
    index = open_index(budget)
    for row in range(len(QUERIES)):
        query = QUERIES[row : row + 1]
        np.testing.assert_array_equal(index.search(query, 5, probes)[1], full.search(query, 5, probes)[1])
        index.prefetch(query, LISTS)
        assert index.cache.wait_idle(10)
    assert index.cache.peak_bytes <= budget
    assert index.cache.counters["evictions"] > 0


def test_a_budget_below_the_largest_list_is_refused(open_index):
    largest = largest_list_bytes(open_index())
    with pytest.raises(LoadError, match=rf"its largest list has {largest}\n  fix: set the budget to {largest} bytes"):
        open_index(largest - 1)


def test_prefetched_lists_are_hits(open_index):
    index = open_index()
    index.prefetch(QUERIES[:1], 4)
    assert index.cache.wait_idle(10)
    assert index.cache.counters["prefetched"] == 4
    index.search(QUERIES[:1], 5, probes=3)
    assert (index.cache.counters["misses"], index.cache.counters["prefetched_used"]) == (0, 3)


def test_prefetching_waits_for_searches(open_index):
    index = open_index()
    with index.cache.search([0]) as lists:
        index.cache.prefetch([1, 2])
        [(number, vectors)] = lists
        assert (number, len(vectors)) == (0, int(np.diff(index._bounds)[0]))
        assert not index.cache.wait_idle(0.05)
        assert index.cache.counters["prefetched"] == 0
    assert index.cache.wait_idle(10)
    assert index.cache.counters["prefetched"] == 2


def test_a_prefetch_does_not_evict_the_lists_of_the_last_search(open_index):
    sizes = np.diff(open_index()._bounds) * ROW_BYTES
    index = open_index(int(sizes.max()) * 2)
    with index.cache.search([0, 1]) as lists:
        assert [number for number, _ in lists] == [0, 1]
    index.cache.prefetch([*range(2, LISTS)])
    assert index.cache.wait_idle(10)
    with index.cache.search([0, 1]) as lists:
        assert len([*lists]) == 2
    assert index.cache.counters["hits"] == 2


def test_what_was_prefetched_in_vain_is_counted(open_index):
    index = open_index()
    index.prefetch(QUERIES[:1], 2)
    assert index.cache.wait_idle(10)
    index.cache.clear()
    assert index.cache.counters["wasted"] == 2
    assert index.cache.resident_bytes == 0


def test_vectors_of_passages(open_index):
    numbers = [5, 599, 0, 5]
    np.testing.assert_array_equal(open_index().vectors_of(numbers), VECTORS[numbers])


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(LoadError, match=r"is not an index: .*\n  fix: build one with `mstar index build FOLDER -o "):
        VectorIndex(tmp_path)


def test_another_format_is_refused(folder, tmp_path):
    header = json.loads((folder / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(header | {"format": 99}))
    with pytest.raises(LoadError, match=r"has index format 99, supported is 1\n  fix: build it again"):
        read_header(tmp_path)


def test_a_truncated_file_is_reported(folder, tmp_path):
    for name in ("index.json", "centroids.npy", "lists.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "vectors.bin").write_bytes((folder / "vectors.bin").read_bytes()[:100])
    with VectorIndex(tmp_path) as index, pytest.raises(LoadError, match=r"ends early\n  fix: build the index again"):
        index.search(QUERIES, 5, probes=LISTS)


def test_no_vectors_are_refused(tmp_path):
    with pytest.raises(LoadError, match="there are no passages to index"):
        write_index(tmp_path, np.empty((0, DIMS), np.float32), "random")
