"""Telling observers of ends, behind asking the tenant's plugins where to: as slow as those are, and so apart from all other work."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh.hook.v1.observed_pb2 import AgentEndEvent, ObservedEvent, SubagentEndedEvent
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.errors import MeshError, name_of, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_session.peers import Hooks
from spawnmesh_session.store import untold
from spawnmesh_session.store.untold import Taken, UntoldEnd

_HELD_FOR = timedelta(
    seconds=60
)  # Longer than its calls may take, so that only what a dead worker held is told by another.
_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class EndTellers:
    """Tell side by side, `at_once` at a time and half as many of one tenant; each end at least once."""

    database: Database
    listener: Listener
    hooks: Hooks
    at_once: int

    async def tell_for_ever(self) -> None:
        """Until cancelled; what is being told then is told by another worker."""
        busy: dict[asyncio.Task[None], str] = {}
        with self.listener.subscription(untold.CHANNEL) as waiting:

            def make_room(task: asyncio.Task[None]) -> None:
                del busy[task]
                waiting.wake()

            async with asyncio.TaskGroup() as telling:
                while True:
                    for taken in await self._take(Counter(busy.values())):
                        task = telling.create_task(self._tell(taken), name="tell end")
                        busy[task] = taken.tenant_id
                        task.add_done_callback(make_room)
                    await waiting.wait(_LOOK_AGAIN_SECONDS)

    async def tell_due(self) -> int:
        """Tells what is due now, or a part of it, and waits until it is told; how many tries that were."""
        due = await self._take({})
        await asyncio.gather(*map(self._tell, due))
        return len(due)

    async def _take(self, busy: Mapping[str, int]) -> list[Taken]:
        room = self.at_once - sum(busy.values())
        if room <= 0:
            return []
        try:
            return await untold.take(self.database, room, max(1, self.at_once // 2), busy, _HELD_FOR)
        except Exception as error:  # noqa: BLE001 - it is looked for again.
            heed_cancellation()
            structlog.get_logger().warning("untold_ends_unread", error=name_of(error))
            return []

    async def _tell(self, taken: Taken) -> None:
        """One try. Never raises: what could not be told, or not be noted, comes again."""
        log = structlog.get_logger().bind(tenant=taken.tenant_id, session=taken.end.session_id)
        try:
            try:
                with continue_trace(taken.end.traceparent), acting_for(taken.tenant_id):
                    async with traced("tell_subagent_ended"):
                        await self.hooks.publish(_events(taken.end, await self._target(taken)))
            except MeshError as error:
                log.warning("end_not_told", error=name_of(error))
                if await untold.put_off(self.database, taken, plugins_failed=_is_of_plugins(error)):
                    return
                log.warning("end_given_up")
            except asyncio.CancelledError:
                await untold.give_back(self.database, taken)
                raise
            await untold.delete(self.database, taken)
        except Exception as error:  # noqa: BLE001 - it comes again when nobody holds it any more.
            heed_cancellation()
            log.warning("end_unnoted", error=name_of(error))

    async def _target(self, taken: Taken) -> str:
        """Where it is to be told; nowhere when plugins fail for the last time, rather than that observers never hear of it."""
        end = taken.end
        asked = DeliveryTargetEvent(
            session_id=end.session_id,
            run_id=end.run_id,
            parent_session_id=end.parent_session_id,
            outcome=end.outcome,
        )
        try:
            return await self.hooks.delivery_target(asked)
        except MeshError as error:
            if taken.tries_left > 1 or not _is_of_plugins(error):
                raise
            log = structlog.get_logger().bind(tenant=taken.tenant_id, session=end.session_id)
            log.warning("end_told_without_place", error=name_of(error))
            return ""


def _is_of_plugins(error: MeshError) -> bool:
    """Whether the tenant's plugins failed or took too long; else it is the hook service that did not answer."""
    return refused_with(error, Reason.PLUGIN_FAILED, Reason.DEADLINE_EXCEEDED)


def _events(end: UntoldEnd, target: str) -> list[ObservedEvent]:
    ended = SubagentEndedEvent(parent_session_id=end.parent_session_id, outcome=end.outcome, delivery_target=target)
    events = [
        ObservedEvent(
            event_key=f"subagent_ended:v1:{end.session_id}:{end.run_id}",
            session_id=end.session_id,
            run_id=end.run_id,
            subagent_ended=ended,
        )
    ]
    if end.run_id:
        events.append(
            ObservedEvent(
                event_key=f"agent_end:v1:{end.session_id}:{end.run_id}",
                session_id=end.session_id,
                run_id=end.run_id,
                agent_end=AgentEndEvent(outcome=end.outcome),
            )
        )
    return events
