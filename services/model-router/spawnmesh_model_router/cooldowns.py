"""Cooldowns as the request path sees them: in memory, kept equal to the database and to the other replicas in the background."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import psycopg
import structlog
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener, Subscription
from spawnmesh_runtime.afterwards import afterwards

from spawnmesh_model_router import store
from spawnmesh_model_router.domain.cooldown import Cooldown, extend, scope_of
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.router_metrics import RouterMetrics
from spawnmesh_model_router.store import Rest, Target

_REFRESH_SECONDS = 30.0  # Nothing waits for it: it only bounds how long a lost notification can matter.
_TRY_AGAIN_SECONDS = 1.0
_GATHER_SECONDS = (
    0.01  # Changes come in bursts, and the call that made one goes on meanwhile: it is not to be held up by saving.
)
_LAST_SAVE_SECONDS = 2.0
_AWAY = (psycopg.Error, PoolTimeout, PoolClosed)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Ended:
    """A success of a call that began then."""

    begin_time: datetime


class Cooldowns:
    """What rests now. A change is seen here at once and saved right after; while the database is away it holds in this process alone."""

    def __init__(self, database: Database, changed: Subscription, metrics: RouterMetrics) -> None:
        self._database = database
        self._changed = changed
        self._metrics = metrics
        self._rests: dict[Target, Rest] = {}
        self._unsaved: dict[Target, Rest | _Ended] = {}
        self._turn = asyncio.Lock()  # What is cleared is neither saved nor read from before meanwhile.

    def of(self, target: Target) -> Cooldown | None:
        """The latest cooldown of a target, which may be over."""
        rest = self._rests.get(target)
        return rest.cooldown if rest is not None else None

    def all(self) -> dict[Target, Cooldown]:
        """The latest cooldown of every target that has failed and not answered since."""
        return {target: rest.cooldown for target, rest in self._rests.items()}

    async def clear(self, target: Target) -> bool:
        """Forgets the failures of the target, whoever knows of them, and saves that at once. Whether it was resting or had rested.

        Raises what the database raises when it is away.
        """
        async with self._turn:
            async with self._database.transaction(store.MESH_TENANT) as connection:
                was_saved = await store.clear_cooldown(connection, target)
                await store.announce_cooldowns(connection)
            self._unsaved.pop(target, None)
            return self._rests.pop(target, None) is not None or was_saved

    def fail(self, target: Target, reason: FailoverReason, now: datetime, retry_after: timedelta | None) -> None:
        """Rests the target after a failure, for longer where it rests already. No-op for a reason that rests nothing of its scope."""
        before = self.of(target)
        cooldown = extend(before, reason, now, retry_after) if scope_of(reason) is target.scope else None
        if cooldown is not None:
            if before is None or not before.active(now):
                afterwards(partial(self._metrics.rested, target.provider, target.scope, reason))
            self._rests[target] = Rest(cooldown, now)
            self._save(target, self._rests[target])

    def succeed(self, target: Target, begin_time: datetime) -> None:
        """Forgets the failures of the target that came before the call began."""
        rest = self._rests.get(target)
        if rest is not None and rest.last_failure_time < begin_time:
            del self._rests[target]
            self._save(target, _Ended(begin_time))

    def _save(self, target: Target, change: Rest | _Ended) -> None:
        self._unsaved[target] = change
        self._changed.wake()

    async def refresh(self) -> bool:
        """Saves what is unsaved, then reads what all replicas know. False when the database is away."""
        async with self._turn:
            return await self._refresh()

    async def _refresh(self) -> bool:
        try:
            await self._save_all()
            async with self._database.pipelined(store.MESH_TENANT) as connection:
                saved = await store.list_cooldowns(connection)
        except _AWAY as error:
            log.warning("cooldowns_not_shared", error=type(error).__name__, unsaved=len(self._unsaved))
            return False
        for target, change in self._unsaved.items():  # These came while the database was being read.
            if isinstance(change, _Ended):
                saved.pop(target, None)
            elif target not in saved or saved[target].cooldown.until < change.cooldown.until:
                saved[target] = change
        self._rests = saved
        return True

    async def _save_all(self) -> None:
        changes = dict(self._unsaved)
        if not changes:
            return
        async with self._database.pipelined(store.MESH_TENANT) as connection:
            # In one order everywhere, so that two replicas cannot wait for each other.
            for target, change in sorted(changes.items(), key=lambda item: (item[0].scope, item[0].name)):
                if isinstance(change, Rest):
                    await store.extend_cooldown(connection, target, change)
                else:
                    await store.end_cooldown(connection, target, change.begin_time)
            await store.announce_cooldowns(connection)
        for target, change in changes.items():
            if self._unsaved.get(target) is change:
                del self._unsaved[target]

    async def keep_for_ever(self) -> None:
        """Refreshes whenever something changed, here or in another replica."""
        pause = _REFRESH_SECONDS
        while True:
            if pause == _REFRESH_SECONDS:
                await self._changed.wait(pause)
                await asyncio.sleep(_GATHER_SECONDS)
            else:
                await asyncio.sleep(pause)
            pause = _REFRESH_SECONDS if await self.refresh() else _TRY_AGAIN_SECONDS
            heed_cancellation()


@asynccontextmanager
async def open_cooldowns(database: Database, listener: Listener, metrics: RouterMetrics) -> AsyncIterator[Cooldowns]:
    """Reads the cooldowns, and keeps them until the block ends; what is unsaved then is saved if that takes no long time."""
    with listener.subscription(store.COOLDOWNS_CHANNEL) as changed:
        cooldowns = Cooldowns(database, changed, metrics)
        await cooldowns.refresh()
        task = asyncio.create_task(cooldowns.keep_for_ever(), name="keep cooldowns")
        try:
            yield cooldowns
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                async with asyncio.timeout(_LAST_SAVE_SECONDS):
                    await cooldowns.refresh()
            except TimeoutError:
                log.warning("cooldowns_not_saved")
