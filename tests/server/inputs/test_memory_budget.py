"""The memory budget of inputs: what one request, one tenant and all of them can hold."""

import threading

import pytest

from mstar.config import HttpLimits
from mstar.server.access.api_keys import ApiKeys
from mstar.server.errors import ApiError
from mstar.server.inputs import memory_budget
from mstar.server.inputs.memory_budget import MemoryBudget, Reservation, default_budget_bytes
from mstar.server.state import ServerState


def rejection(reservation, size):
    """Status and code of a rejected reservation; None if it is granted."""
    try:
        reservation.add(size, "file")
    except ApiError as error:
        return error.status, error.code, error.retry_after
    return None


def test_a_request_above_its_limit_can_never_be_served():
    reservation = Reservation(MemoryBudget(1000), "")
    assert rejection(reservation, 1001) == (413, "too_large", None)
    assert rejection(reservation, 600) is None
    assert rejection(reservation, 401) == (413, "too_large", None)


def test_the_sum_of_all_requests_is_limited():
    budget = MemoryBudget(1000)
    first, second = Reservation(budget, ""), Reservation(budget, "")
    assert rejection(first, 600) is None
    assert rejection(second, 401) == (429, "input_memory_full", 1.0)
    first.remove(1)
    assert rejection(second, 401) is None
    first.close()
    second.close()
    assert budget.held_bytes == 0


def test_one_tenant_can_hold_half_of_a_shared_budget():
    budget = MemoryBudget(1000, is_shared=lambda: True)
    assert rejection(Reservation(budget, "alice"), 501) == (413, "too_large", None)
    assert rejection(Reservation(budget, "alice"), 300) is None
    assert rejection(Reservation(budget, "alice"), 201) == (429, "input_memory_full", 1.0)
    assert rejection(Reservation(budget, "bob"), 500) is None


def test_a_server_that_gets_its_first_key_shares_the_budget():
    state = ServerState({}, limits=HttpLimits(max_input_memory_bytes=1000))
    assert (state.memory_budget.max_tenant_bytes, state.memory_budget.max_request_bytes) == (1000, 1000)
    state.keys.replace(ApiKeys(["a"]))
    assert (state.memory_budget.max_tenant_bytes, state.memory_budget.max_request_bytes) == (500, 500)


def test_a_closed_reservation_holds_nothing():
    budget = MemoryBudget(1000)
    reservation = Reservation(budget, "")
    reservation.add(10)
    reservation.close()
    reservation.close()
    assert rejection(reservation, 1) == (429, "input_memory_full", 1.0)
    assert budget.held_bytes == 0


def test_a_reservation_that_is_closed_while_a_thread_adds_leaks_nothing():
    class ClosingBudget(MemoryBudget):
        """Another thread closes the reservation as soon as its bytes are reserved."""

        def reserve(self, tenant, size):
            is_reserved = super().reserve(tenant, size)
            closer.start()
            closer.join(0.2)
            return is_reserved

    budget = ClosingBudget(1000)
    reservation = Reservation(budget, "")
    closer = threading.Thread(target=reservation.close)
    reservation.add(10)
    closer.join(10)
    assert budget.held_bytes == 0


@pytest.mark.parametrize(("text", "divisor"), [("max\n", 8), ("8000000\n", None)])
def test_the_default_is_a_share_of_the_memory(tmp_path, monkeypatch, text, divisor):
    path = tmp_path / "memory.max"
    path.write_text(text)
    monkeypatch.setattr(memory_budget, "_CGROUP_LIMIT", path)
    machine = default_budget_bytes()
    assert machine == 1_000_000 if divisor is None else machine > 1_000_000
    monkeypatch.setattr(memory_budget, "_CGROUP_LIMIT", tmp_path / "missing")
    assert default_budget_bytes() > 1_000_000
