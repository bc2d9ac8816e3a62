"""Start of a worker: which device it opens, how it calls it, and the memory that its components share there."""

import pytest

from mstar.config import RuntimeConfig
from mstar.errors import LoadError
from mstar.nn import devices
from mstar.nn.lm.causal_lm import DEFAULT_PAGES, CausalLM
from mstar.nn.pretend_gpu import with_memory
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.worker.loading import _open_device, _open_memory, components_with_ranks, load_components, rank_count


@pytest.fixture
def opened(monkeypatch):
    """Names of devices that were opened."""
    names = []
    monkeypatch.setattr(devices, "open_device", names.append)
    return names


def test_a_device_has_the_name_of_the_placement(opened):
    assert _open_device("w0", {"xpu:1"}, "")[0] == "xpu:1"
    assert opened == ["xpu:1"]


def test_the_only_visible_gpu_is_the_first_one_inside_and_keeps_its_name_for_operators(opened):
    assert _open_device("w0", {"cuda:1"}, "cuda:1")[0] == "cuda:1"
    assert _open_device("w0", {"cuda"}, "cuda:3")[0] == "cuda:3"
    assert opened == ["cuda:0", "cuda:0"]


def test_a_gpu_that_cannot_be_used_is_named_as_in_the_placement(monkeypatch):
    def refuse(name):
        raise LoadError(f"torch cannot use the device {name!r}\n  fix: install another build")

    monkeypatch.setattr(devices, "open_device", refuse)
    with pytest.raises(LoadError, match="worker w0 sees cuda:1 only, as its cuda:0: torch cannot use the device"):
        _open_device("w0", {"cuda:1"}, "cuda:1")


def test_two_devices_of_one_worker_are_refused(opened):
    with pytest.raises(LoadError, match="`cuda:0`, `cuda:1`"):
        _open_device("w0", {"cuda:1", "cuda:0"}, "cuda:1")
    assert opened == []


class Settings:
    """The part of WorkerConfig that loading reads."""

    def __init__(self, directory):
        self.directory, self.cuda_device = str(directory), ""
        self.options = RuntimeConfig(max_batched_tokens=32, max_batch_size=4)


class Peer:
    worker = "gpu0"

    def __str__(self):
        return "gpu0"


def planned(lm, placement):
    resources = parse_placement(placement).worker_resources["gpu0"]
    shares = {} if resources.memory is None else {"gpu0": resources.memory}

    class Model:
        def components(self):
            return {"lm": lm}

    class Planned(PlannedModel):
        __slots__ = ()

        def components_at(self, worker):
            return ("lm",)

    return Planned(Model(), None, {"gpu0": resources.device}, memory_shares=shares)


def make_lm():
    from tests.nn.lm.model_families import new_network

    lm = CausalLM(lambda: new_network("llama"), eos_token_id=2, page_size=4)
    lm.name = "lm"
    return lm


def place(**fields):
    return {"place": {"lm": "gpu0"}, "workers": {"gpu0": {"device": "pretend"} | fields}}


@pytest.mark.parametrize("share", [None, 0.25])
def test_pages_are_sized_from_the_share_of_the_placement(tmp_path, share):
    lm = make_lm()
    with with_memory(4_000_000):
        fields = {} if share is None else {"memory": share}
        load_components({"m": planned(lm, place(**fields))}, Settings(tmp_path), Peer())
        assert lm.memory.limit == int((0.85 if share is None else share) * 4_000_000)
        assert lm.memory.used < lm.memory.limit
        assert lm.memory_stats()["pages"] != DEFAULT_PAGES


def test_without_memory_figures_the_number_of_pages_is_fixed(tmp_path):
    lm = make_lm()
    load_components({"m": planned(lm, place())}, Settings(tmp_path), Peer())
    assert lm.memory is None
    assert lm.memory_stats()["pages"] == DEFAULT_PAGES


def test_a_network_that_does_not_fit_ends_the_start(tmp_path):
    with with_memory(50_000), pytest.raises(LoadError, match=r"lm needs .* for its weights on pretend:0, and has"):
        load_components({"m": planned(make_lm(), place())}, Settings(tmp_path), Peer())


def test_placements_that_disagree_about_a_worker_are_refused(tmp_path):
    with pytest.raises(LoadError, match=r"worker gpu0 the shares `0.5`, `0.7` of its device"):
        _open_memory("gpu0", None, {0.7, 0.5}, Settings(tmp_path))


# ---------------------------------------------------------------- ranks
class Encoder(CausalLM):
    runs_on_ranks = False


def ranked(counts, component=None):
    """Planned models of one worker, with these numbers of ranks."""

    class Planned(PlannedModel):
        __slots__ = ()

        def components_at(self, worker):
            return ("lm",)

    class Model:
        def components(self):
            return {"lm": component or make_lm()}

    models = [Planned(Model(), None, ranks={"gpu0": count} if count > 1 else {}) for count in counts]
    return {f"m{number}": model for number, model in enumerate(models)}


def test_a_worker_has_the_ranks_of_its_placement():
    assert rank_count(ranked([1]), "gpu0") == 1
    assert rank_count(ranked([2, 2]), "gpu0") == 2
    assert [*components_with_ranks(ranked([2, 2]), "gpu0")] == ["m0.lm", "m1.lm"]


def test_placements_that_disagree_about_ranks_are_refused():
    with pytest.raises(LoadError, match="worker gpu0 `1`, `2` ranks\n  fix: write the same `ranks`"):
        rank_count(ranked([2, 1]), "gpu0")


def test_ranks_that_no_component_can_use_are_refused():
    encoder = Encoder(lambda: None, eos_token_id=2)
    with pytest.raises(LoadError, match=r"has 2 ranks, and none of its components can use more than one: `m0\.lm`"):
        rank_count(ranked([2], encoder), "gpu0")


def test_each_rank_opens_a_gpu_of_its_own(opened):
    for rank in range(2):
        assert _open_device("w0", {"cuda"}, "cuda:2, cuda:3", rank)[0] == "cuda:2, cuda:3"
    assert opened == ["cuda:0", "cuda:1"]
