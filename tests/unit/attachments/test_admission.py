"""What a replica has little of goes to tenants in turn, whatever one of them asks for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from spawnmesh_attachment_blob.admission import Admission, Bounds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


def admission(size: int, *, waiting: int = 1000, wait_seconds: float = 60.0) -> Admission:
    return Admission(Bounds("things", "too many", size, waiting, wait_seconds, 2.0))


class Holders:
    """Callers that hold what they get until they are let go, in the order in which they got it."""

    def __init__(self, admission: Admission, tasks: asyncio.TaskGroup) -> None:
        self._admission = admission
        self._tasks = tasks
        self._ends: dict[str, asyncio.Event] = {}
        self.got: list[str] = []

    async def ask(self, name: str, size: int = 1) -> asyncio.Task[None]:
        """Asks for the tenant that the name begins with."""
        end = self._ends[name] = asyncio.Event()

        async def hold() -> None:
            async with self._admission.taken(name[0], size):
                self.got.append(name)
                await end.wait()

        task = self._tasks.create_task(hold())
        await settle()
        return task

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def holders(admission: Admission) -> AsyncIterator[Holders]:
    async with asyncio.TaskGroup() as tasks:
        yield Holders(admission, tasks)


async def refusal_of(work: Awaitable[object]) -> MeshError:
    with pytest.raises(MeshError) as raised:
        await work
    assert raised.value.reason is Reason.POOL_EXHAUSTED
    return raised.value


async def test_a_tenant_has_half_and_lets_others_pass() -> None:
    async with holders(admission(4)) as held:
        for name in ("a1", "a2", "a3", "b1", "b2"):
            await held.ask(name)
        assert held.got == ["a1", "a2", "b1", "b2"]
        await held.end("b1")
        assert held.got == ["a1", "a2", "b1", "b2"], "what is left is not for who has its half"
        await held.end("a1")
        assert held.got[-1] == "a3"
        await held.end("a2", "a3", "b2")


async def test_tenants_have_turns_however_many_calls_one_of_them_makes() -> None:
    async with holders(admission(2)) as held:
        for name in ("a1", "b1", "a2", "a3", "a4", "b2", "c1"):
            await held.ask(name)
        assert held.got == ["a1", "b1"]
        await held.end("a1")
        assert held.got[2:] == ["a2"]
        await held.end("a2", "b1")
        assert held.got[3:] == ["c1", "b2"]
        await held.end("c1", "b2", "a3", "a4")
        assert sorted(held.got) == ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]


async def test_what_is_large_has_its_turn_though_there_is_room_for_smaller_ones() -> None:
    async with holders(admission(10)) as held:
        await held.ask("a1", 5)
        await held.ask("b1", 3)
        await held.ask("c1", 100)  # As much as a tenant may have: 5.
        await held.ask("d1", 1)
        assert held.got == ["a1", "b1"]
        await held.end("b1")
        assert held.got[2:] == ["c1"]
        await held.end("a1")
        assert held.got[3:] == ["d1"]
        await held.end("c1", "d1")


async def test_more_than_may_wait_is_refused_at_once() -> None:
    bounded = admission(2, waiting=8)
    async with holders(bounded) as held:
        await held.ask("a1")
        await held.ask("b1")
        await held.ask("a2")
        await held.ask("a3")
        refusal = await refusal_of(bounded.taken("a").__aenter__())
        assert (refusal.facts, refusal.retry_after_seconds) == ({"pool": "things"}, 2.0)
        await held.ask("b2")
        await held.end("a1", "b1", "a2", "a3", "b2")
        assert sorted(held.got) == ["a1", "a2", "a3", "b1", "b2"]


async def test_who_waits_for_long_is_refused_and_who_is_cancelled_leaves_nothing_behind() -> None:
    bounded = admission(2, wait_seconds=0.01)
    async with holders(bounded) as held:
        await held.ask("a1")
        await refusal_of(bounded.taken("a").__aenter__())
        cancelled = await held.ask("a2")
        cancelled.cancel()
        await settle()
        assert not bounded.is_wanted("a")
        await held.end("a1")
        await held.ask("a3")
        assert held.got == ["a1", "a3"]
        await held.end("a3")


async def test_who_is_cancelled_as_its_turn_comes_gives_it_back() -> None:
    bounded = admission(2)
    async with holders(bounded) as held:
        await held.ask("a1")
        second = await held.ask("a2")
        held._ends["a1"].set()
        await asyncio.sleep(0)  # The turn is given, and has not been taken note of.
        second.cancel()
        await settle()
        await held.ask("a3")
        assert held.got[-1] == "a3"
        await held.end("a3")


async def test_what_one_holds_is_wanted_where_another_could_have_it() -> None:
    bounded = admission(4)
    async with holders(bounded) as held:
        for name in ("a1", "a2", "a3"):
            await held.ask(name)
        assert bounded.is_wanted("a")
        assert not bounded.is_wanted("b"), "what b gave back would not be for a, which has its half"
        await held.end("a1", "a2", "a3")
