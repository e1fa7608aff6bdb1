"""Handing out runs, and keeping or giving back what was handed out."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError, name_of
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import Listener

from spawnmesh_session.domain import AgentProfile, Ending, EventKind, RunState
from spawnmesh_session.operations.endings import Endings, lock_run
from spawnmesh_session.render import render_agent, render_session
from spawnmesh_session.run_metrics import RunMetrics
from spawnmesh_session.store import inbox, runs, sessions, tenants

_LOOK_AGAIN_SECONDS = 1.0  # A lease that runs out wakes nobody; a new run does.
_LOOK_AGAIN_AFTER_OTHERS_SECONDS = 0.02  # As long as another claim takes to pick its runs.
_MAX_ANSWER_BYTES = 3 * 1024 * 1024  # An answer is less than the 4 MiB that gRPC takes by default.
_REST_BYTES = 4096  # The token, and what else has few bytes.
_OF_THE_MOMENT = frozenset({Status.UNAVAILABLE, Status.ABORTED, Status.RESOURCE_EXHAUSTED})


class _NoRoom(Exception):
    """A run that would make an answer too large, and was not claimed."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run handed out, with what its runner must know."""

    tenant_id: str
    run: DictRow
    session: DictRow
    agent: AgentProfile

    @property
    def size_bytes(self) -> int:
        """What it adds to an answer at most."""
        models = sum(
            len(model.encode()) for model in self.agent.models
        )  # They are told beside the agent's profile, too.
        return render_session(self.session).ByteSize() + render_agent(self.agent).ByteSize() + models + _REST_BYTES


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a heartbeat brought; `time_left` to the deadline, by the database's clock, is less than nothing past that."""

    lease_end: datetime
    time_left: timedelta
    waiting_count: int


def _is_of_the_moment(error: Exception) -> bool:
    """Whether the database could not answer, so that nothing need be wrong with the run."""
    refusal = translate(error)
    return refusal is not None and refusal.status in _OF_THE_MOMENT


def lease_lost(run: DictRow, epoch: int) -> MeshError:
    """The refusal for a runner that no longer holds its run."""
    return MeshError(
        Reason.RUN_LEASE_LOST,
        f"run {run['run_id']} is {run['state']} at epoch {run['epoch']}, and you hold epoch {epoch}; stop working on it",
        facts={"run_id": run["run_id"], "state": run["state"], "epoch": run["epoch"]},
    )


def require_held(run: DictRow, epoch: int) -> None:
    """Raises RUN_LEASE_LOST unless the run is held at this epoch."""
    if run["epoch"] != epoch or run["state"] not in (RunState.RUNNING, RunState.FINALIZING):
        raise lease_lost(run, epoch)


@dataclass(frozen=True, slots=True)
class Leases:
    """Runs in the hands of runners."""

    database: Database
    listener: Listener
    lease_ttl: timedelta
    metrics: RunMetrics
    endings: Endings

    async def claim(self, runner_id: str, limit: int, wait_seconds: float, runtimes: Sequence[str]) -> list[Claimed]:
        """Up to `limit` runs of these runtimes whose time has come; waits for the first, at most `wait_seconds`."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_seconds
        with self.listener.subscription("run_queued") as queued:
            while True:
                claimed, others_took = await self._hand_out(runner_id, limit, runtimes)
                left = give_up - loop.time()
                if claimed or left <= 0:
                    return claimed
                pause = _LOOK_AGAIN_AFTER_OTHERS_SECONDS if others_took else _LOOK_AGAIN_SECONDS
                await queued.wait(min(left, pause))

    async def _hand_out(self, runner_id: str, limit: int, runtimes: Sequence[str]) -> tuple[list[Claimed], bool]:
        """As `_take`; where the caller goes away meanwhile, what was claimed for it goes back into the queue."""
        taking = asyncio.create_task(self._take(runner_id, limit, runtimes))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.shield(self._take_back(taking))
            raise

    async def _take(self, runner_id: str, limit: int, runtimes: Sequence[str]) -> tuple[list[Claimed], bool]:
        """The runs claimed, and whether it is worth looking again soon."""
        taken = await runs.take_claimable(self.database, limit, self.lease_ttl, runtimes)
        return await self._claim_taken(taken.runs, runner_id), taken.others_took

    async def _take_back(self, taking: asyncio.Task[tuple[list[Claimed], bool]]) -> None:
        """Gives back what nobody will hear of, at the epoch it was claimed with. Never raises: what cannot be given back waits for its lease."""
        log = structlog.get_logger()
        try:
            claimed, _ = await taking
        except Exception as error:  # noqa: BLE001 - nobody is left to hear of it.
            log.warning("claim_failed", error=name_of(error))
            return
        for one in claimed:
            try:
                await self.release(one.tenant_id, one.run["run_id"], one.run["epoch"])
            except Exception as error:  # noqa: BLE001 - the others are given back all the same.
                log.warning("run_not_given_back", run=one.run["run_id"], error=name_of(error))

    async def _claim_taken(self, taken: list[tuple[str, str]], runner_id: str) -> list[Claimed]:
        """Claims each run in a transaction of its own, which takes its locks in the order of all others; one that cannot be claimed is left
        until its lease has run out, and is failed after its attempts. Given back is that for which the database had no answer, and the rest from
        where the answer would be too large, but never the first."""
        claimed: list[Claimed] = []
        room_bytes: int | None = None
        for tenant_id, run_id in taken:
            try:
                one = await self._claim_one(tenant_id, run_id, runner_id, room_bytes)
            except _NoRoom:
                room_bytes = 0
                await self._give_back(tenant_id, run_id)
                continue
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one run, those of other tenants are handed out.
                structlog.get_logger().warning("claim_failed", tenant=tenant_id, run=run_id, error=name_of(error))
                if _is_of_the_moment(error):
                    await self._give_back(tenant_id, run_id)
                continue
            if one is not None:
                self.metrics.claimed(one.run)
                claimed.append(one)
                room_bytes = max(0, (_MAX_ANSWER_BYTES if room_bytes is None else room_bytes) - one.size_bytes)
        return claimed

    async def _give_back(self, tenant_id: str, run_id: str) -> None:
        """A run that was taken and not claimed goes back. Never raises: what cannot be given back waits for its lease."""
        try:
            async with self.database.pipelined(tenant_id) as connection:
                await runs.give_back(connection, tenant_id, run_id)
        except Exception as error:  # noqa: BLE001 - the others are seen to all the same.
            structlog.get_logger().warning("run_not_given_back", run=run_id, error=name_of(error))

    async def _claim_one(
        self, tenant_id: str, run_id: str, runner_id: str, room_bytes: int | None = None
    ) -> Claimed | None:
        """None for a run that has ended meanwhile, or that ends here, since its agent was deleted. Raises _NoRoom, with nothing done, for one
        that takes more than is left for it."""
        if room_bytes == 0:
            raise _NoRoom
        try:
            async with self.database.pipelined(tenant_id) as connection:
                claimed = await runs.claim(connection, tenant_id, run_id, runner_id=runner_id, lease_ttl=self.lease_ttl)
                if claimed is None:
                    return None
                session, run = claimed
                one = Claimed(tenant_id, run, session, tenants.known_agent(session["agent_id"], session["agent"]))
                if room_bytes is not None and one.size_bytes > room_bytes:
                    raise _NoRoom
                return one
        except MeshError as error:
            if error.reason is not Reason.UNKNOWN_AGENT:
                raise
            await self._end_without_agent(tenant_id, run_id, error)
            return None

    async def _end_without_agent(self, tenant_id: str, run_id: str, error: MeshError) -> None:
        """Fails a run that was not claimed; gives it back where its agent was written again meanwhile."""
        async with self.database.transaction(tenant_id) as connection:
            locked = await lock_run(connection, tenant_id, run_id)
            if await tenants.find_agent(connection, tenant_id, locked.session["agent_id"]) is not None:
                await runs.give_back(connection, tenant_id, run_id)
                return
            ending = Ending(state=RunState.FAILED, error_reason=error.reason.value, error_message=error.message)
            await self.endings.end_run(connection, tenant_id, locked, ending)

    async def heartbeat(self, tenant_id: str, run_id: str, epoch: int) -> Renewed:
        """Extends the lease."""
        async with self.database.pipelined(tenant_id) as connection:
            run = await runs.lock(connection, tenant_id, run_id)
            require_held(run, epoch)
            lease_end = await runs.extend_lease(connection, tenant_id, run_id, self.lease_ttl)
            if lease_end is None:
                raise lease_lost(run, epoch)
            waiting_count = await inbox.count_waiting(connection, tenant_id, run["session_id"])
            return Renewed(lease_end, run["deadline_time"] - (lease_end - self.lease_ttl), waiting_count)

    async def release(self, tenant_id: str, run_id: str, epoch: int) -> DictRow:
        """Back into the queue, from the runner that holds it; the same again at this epoch answers the run as it is."""
        async with self.database.transaction(tenant_id) as connection:
            session_id = (await runs.get(connection, tenant_id, run_id))["session_id"]
            await sessions.lock(connection, tenant_id, session_id)
            run = await runs.requeue(connection, tenant_id, run_id, epoch)
            if run is None:
                run = await runs.get(connection, tenant_id, run_id)
                if run["state"] != RunState.QUEUED or run["epoch"] != epoch:
                    raise lease_lost(run, epoch)
                return run
            await sessions.append_event(
                connection,
                tenant_id,
                session_id,
                EventKind.RUN,
                run_id=run_id,
                run_state=RunState.QUEUED,
                detail="given back",
            )
            return run

    async def list_inbox(self, tenant_id: str, session_id: str) -> list[DictRow]:
        """Messages that wait, oldest first."""
        return await inbox.list_waiting(self.database, tenant_id, session_id)

    async def acknowledge_inbox(self, tenant_id: str, run_id: str, epoch: int, keys: list[str]) -> None:
        """Takes messages out, for the runner that holds the run."""
        async with self.database.transaction(tenant_id) as connection:
            run = await runs.lock(connection, tenant_id, run_id)
            require_held(run, epoch)
            await inbox.acknowledge(connection, tenant_id, run["session_id"], keys)
