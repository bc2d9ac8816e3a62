"""Slots are granted tenant by tenant, and one tenant cannot hold all of them."""

import asyncio

import pytest

from mstar.media.fair_slots import FairSlots


class Users:
    """Tasks that hold a slot until they are told to release it."""

    def __init__(self, slots):
        self._slots = slots
        self.order = []
        self._tasks = {}
        self._releases = {}

    async def start(self, tenant, name):
        self._releases[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(tenant, name))
        await asyncio.sleep(0)

    async def _hold(self, tenant, name):
        async with self._slots.slot(tenant):
            self.order.append(name)
            await self._releases[name].wait()

    async def release(self, name):
        self._releases[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def cancel(self, name):
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        await asyncio.sleep(0)


def run(scenario, count=2):
    async def main():
        users = Users(FairSlots(count))
        await asyncio.wait_for(scenario(users), 5)
        return users.order

    return asyncio.run(main())


def test_one_slot_is_kept_for_other_tenants():
    async def scenario(users):
        for number in range(3):
            await users.start("alice", f"a{number}")
        assert users.order == ["a0"]
        await users.start("bob", "b0")
        assert users.order == ["a0", "b0"]

    run(scenario)


def test_waiting_tenants_take_turns():
    async def scenario(users):
        for name in ("a0", "a1", "a2"):
            await users.start("alice", name)
        for name in ("b0", "b1"):
            await users.start("bob", name)
        for name in ("a0", "b0", "a1", "b1", "a2"):
            await users.release(name)

    assert run(scenario, count=1) == ["a0", "b0", "a1", "b1", "a2"]


def test_without_tenants_all_slots_are_used():
    async def scenario(users):
        for number in range(3):
            await users.start("", f"x{number}")
        assert users.order == ["x0", "x1"]
        await users.release("x1")
        assert users.order == ["x0", "x1", "x2"]

    run(scenario)


def test_a_cancelled_waiter_and_a_cancelled_holder_give_their_slot_back():
    async def scenario(users):
        await users.start("alice", "a0")
        await users.start("alice", "a1")
        await users.cancel("a1")
        await users.start("alice", "a2")
        await users.cancel("a0")
        assert users.order == ["a0", "a2"]
        await users.start("bob", "b0")
        assert users.order == ["a0", "a2", "b0"]

    run(scenario)
