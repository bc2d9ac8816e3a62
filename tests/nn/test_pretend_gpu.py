"""The pretend GPU refuses what a GPU refuses, and counts what makes the host wait."""

import copy

import pytest
import torch

from mstar.nn.pretend_gpu import PretendGraph, count_traffic, memory_id, pretend_gpu

MODES = [torch.no_grad, torch.inference_mode]


@pytest.fixture(params=MODES, ids=lambda mode: mode.__name__, autouse=True)
def mode(request):
    with request.param():
        yield


def on_device(*shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape).to(pretend_gpu())


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + torch.ones(4),
        lambda x: torch.ones(4) + x,
        lambda x: x @ torch.ones(4, 2),
        lambda x: torch.nn.functional.embedding(torch.tensor([1]), x),
        lambda x: torch.nn.functional.linear(torch.ones(2, 4), x),
        lambda x: torch.cat([x, torch.ones(3, 4)]),
        lambda x: torch.ones(3)[x[:, 0].long()],
        lambda x: x.data_ptr(),
    ],
)
def test_tensors_of_two_devices_are_refused(use):
    with pytest.raises(RuntimeError, match=r"device|pretend"):
        use(on_device(3, 4))


def test_a_tensor_is_not_read_as_an_array():
    with pytest.raises(TypeError, match="can't convert"):
        on_device(3).numpy()


def test_results_are_those_of_the_host():
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    moved = x.to(pretend_gpu())
    assert torch.equal((moved.T @ moved).softmax(-1).cpu(), (x.T @ x).softmax(-1))
    moved[1:3, ::2] = 4.0
    x[1:3, ::2] = 4.0
    assert torch.equal(moved.T.reshape(-1).cpu(), x.T.reshape(-1)), "views share the memory of their tensor"
    assert moved.tolist() == x.tolist()
    linear = torch.nn.Linear(7, 2)
    expected = linear(x)
    assert torch.equal(linear.to(pretend_gpu())(moved).cpu(), expected)


@pytest.mark.parametrize(
    ("use", "syncs", "to_device", "to_host"),
    [
        (lambda x: x * 2 + x[0], 0, 0, 0),
        (lambda x: torch.arange(3, device=x.device) + torch.zeros(3, device=x.device), 0, 0, 0),
        (lambda x: x[torch.arange(2, device=x.device)], 0, 0, 0),
        (lambda x: x + 1.5, 0, 0, 0),
        (lambda x: x.sum().item(), 1, 0, 0),
        (lambda x: bool((x > 100).any()), 1, 0, 0),
        (lambda x: x.cpu(), 1, 0, 1),
        (lambda x: x.tolist(), 1, 0, 1),
        (lambda x: (x > 1).nonzero(), 1, 0, 0),
        (lambda x: x[x > 1], 1, 0, 0),
        (lambda x: x[[0, 1]], 1, 1, 0),
        (lambda x: x[torch.tensor([0, 1])], 1, 1, 0),
        (lambda x: torch.tensor([1, 2], device=x.device), 1, 1, 0),
        (lambda x: x.new_tensor([1, 2]), 1, 1, 0),
        (lambda x: torch.ones(3).to(x.device), 1, 1, 0),
        (lambda x: torch.ones(3).to(x.device, non_blocking=True), 0, 1, 0),
        (lambda x: x.copy_(torch.ones(3, 4)), 1, 1, 0),
        (lambda x: x[:, 0].long().clamp(max=2).repeat_interleave(x[:, 0].long()), 1, 0, 0),
    ],
)
def test_traffic_is_counted(use, syncs, to_device, to_host):
    x = on_device(3, 4)
    with count_traffic() as traffic:
        use(x)
    counted = [sum(counter.values()) for counter in (traffic.syncs, traffic.to_device, traffic.to_host)]
    assert counted == [syncs, to_device, to_host]
    assert all("test_pretend_gpu.py:" in line for line in traffic.syncs), "lines of this file, not of torch"


def test_a_range_knows_its_size():
    device = pretend_gpu()
    with count_traffic() as traffic:
        for made in (torch.arange(3, device=device), torch.arange(1, 4, device=device)):
            assert made.shape == (3,)
    assert sum(traffic.kernels.values()) == 2
    columns = torch.arange(0.0, 6.0, 3.0, dtype=torch.float64, device=device)
    (grid, _) = torch.meshgrid(columns, columns, indexing="ij")
    assert grid.cpu().tolist() == [[0, 0], [3, 3]]


def test_counts_can_be_nested():
    x = on_device(3)
    with count_traffic() as outer:
        with count_traffic() as inner:
            pass
        x.cpu()
    assert (sum(outer.to_host.values()), sum(inner.to_host.values())) == (1, 0)


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_tensor_of_a_tensor_has_the_dtype_of_the_call():
    x, device = on_device(3), pretend_gpu()
    assert torch.as_tensor(x, dtype=torch.float64, device=device).dtype == torch.float64
    assert torch.tensor(x, dtype=torch.float64, device=device).dtype == torch.float64
    assert torch.as_tensor(x, device=device) is x
    assert torch.tensor(x, device=device) is not x, "a copy"


def test_a_default_device_still_holds_for_tensors_of_python_values():
    pretend_gpu()
    with torch.device("meta"):
        assert torch.tensor([1]).device.type == "meta"


def test_random_states_are_saved_and_restored_beside_it():
    pretend_gpu()
    with torch.random.fork_rng():  # of all devices
        torch.manual_seed(0)
        first = torch.rand(3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert torch.equal(torch.rand(3), first)


def test_a_graph_repeats_its_operations_on_the_same_memory():
    weight, given, memory = on_device(4, 4), on_device(2, 4), on_device(3, 4)
    with PretendGraph() as graph:
        index = torch.arange(2, device=pretend_gpu())
        hidden = (given @ weight)[:, 1:].relu()
        memory[index, 1:] = hidden
        result = memory.sum(0) + hidden[0].max()
    assert {*map(memory_id, graph.inputs)} == {*map(memory_id, (weight, given, memory))}
    for number in range(3):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
        given.copy_(x)
        expected = memory.cpu()
        expected[:2, 1:] = (x @ weight.cpu())[:, 1:].relu()
        graph.replay()
        assert torch.equal(memory.cpu(), expected)
        assert torch.equal(result.cpu(), expected.sum(0) + expected[0, 1:].max())


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[0, 0].item(),
        lambda x: x[x > 1],
        lambda x: x.cpu(),
        lambda x: x + torch.ones(3, 4).to(pretend_gpu(), non_blocking=True),
        lambda x: x[torch.tensor([1, 2])],
    ],
)
def test_a_graph_holds_neither_waits_nor_copies(use):
    x = on_device(3, 4)
    with PretendGraph(), pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        use(x)
    use(x)


def test_a_deep_copy_is_on_the_device_and_independent():
    x = on_device(3, 4)
    first, second = copy.deepcopy([x, x])
    x.zero_()
    assert first is second
    assert first.device == pretend_gpu()
    assert first.tolist() == torch.arange(12.0).view(3, 4).tolist()
