"""Captured graphs by shape: their number and the bytes of their buffers are limited, and they share a pool."""

import torch

from mstar.nn.device_graphs import MAX_GRAPHS, DeviceGraphs, padded_size
from mstar.nn.pretend_gpu import pretend_gpu, with_memory


def run(graphs, rows):
    """The sum of squares of a batch, by a graph."""
    arrays = [torch.arange(rows)]
    graph = graphs.find(rows) or graphs.capture(rows, arrays, lambda parts: (parts[0] * parts[0]).sum())
    return None if graph is None else int(graph.run(arrays))


def test_sizes_are_powers_of_two():
    assert [padded_size(count) for count in (1, 2, 3, 4, 5, 255, 256)] == [1, 2, 4, 4, 8, 256, 256]


def test_the_least_recently_used_graph_is_dropped():
    graphs = DeviceGraphs(pretend_gpu(), "tests")
    for rows in range(1, MAX_GRAPHS + 1):
        assert run(graphs, rows) == sum(number * number for number in range(rows))
    run(graphs, 1)
    assert run(graphs, 100) == 328350
    assert len(graphs.graphs) == MAX_GRAPHS
    assert 1 in graphs.graphs
    assert 2 not in graphs.graphs
    assert run(graphs, 2) == 1


def test_the_buffers_of_all_graphs_have_a_limit():
    graphs = DeviceGraphs(pretend_gpu(), "tests", max_buffer_bytes=80)
    for rows in (4, 6, 3, 10):
        assert run(graphs, rows) is not None
        assert sum(graph.buffer.nbytes for graph in graphs.graphs.values()) <= 80
    assert [*graphs.graphs] == [10]
    assert run(graphs, 11) is None


def test_graphs_share_memory_as_large_as_the_largest_needs():
    with with_memory(1_000_000):
        memory = torch.get_device_module(pretend_gpu())
        graphs = DeviceGraphs(pretend_gpu(), "tests")
        used = []
        for size in (1000, 500, 2000, 2000):
            arrays = [torch.zeros(1, dtype=torch.int64)]
            graphs.capture(len(used), arrays, lambda parts, size=size: parts[0].expand(size).clone() * 2)
            used.append(memory.memory_allocated())
        assert 16_000 <= used[0] < 17_000
        assert used[1] - used[0] < 100
        assert 16_000 <= used[2] - used[1] < 17_000
        assert used[3] - used[2] < 100
        del graphs
        assert memory.memory_allocated() < 100


def test_a_failed_capture_is_not_tried_again(caplog):
    graphs = DeviceGraphs(pretend_gpu(), "tests")

    def wait(parts):
        return parts[0].sum().item()

    for _ in range(2):
        assert graphs.capture(1, [torch.arange(1)], wait) is None
    assert caplog.text.count("tests run without graphs, which is slower: operation not permitted") == 1


def test_an_out_of_memory_error_is_reported_as_a_failed_capture(caplog):
    with with_memory(1000):
        graphs = DeviceGraphs(pretend_gpu(), "tests")
        assert graphs.capture(1, [torch.arange(1)], lambda parts: parts[0].expand(1000).clone()) is None
    assert "out of memory" in caplog.text
