"""Tell the watchers of a session which models failed and what plugins decided.

The runner and the workers of this client report the same events, each with its own calls.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from spawnmesh.hook.v1.run_hook_service_pb2 import DispatchBeforeToolCallResponse
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerationEvent
from spawnmesh.session.v1 import run_event_pb2 as pb
from spawnmesh.session.v1.run_service_pb2 import ClaimedRun
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.side_task import side_task
from spawnmesh_client.turn_effects import failover_reason

_MAX_IN_CALL = 32
# A run waits so long for reports that are under way, before it is given up or ends.
_LAST_CALL_SECONDS = 1.0
_PREFIX = "FAILOVER_REASON_"
_MAX_NAME_BYTES, _MAX_STATUS, _MAX_PLUGINS = 256, 999, 64
_log = logging.getLogger("spawnmesh_client.run_events")

Report = Callable[[pb.ReportRunEventsRequest], Awaitable[object]]
"""Calls ReportRunEvents, and may repeat it."""


class RunEvents:
    """The events of a run that were not reported yet."""

    def __init__(self) -> None:
        self._events: deque[pb.RunEvent] = deque()
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        self._settled.set()
        self._is_closed = False

    def add_failure(
        self, model: str, reason: "generation_pb2.FailoverReason.ValueType", http_status: int = 0
    ) -> None:
        """Add the failure of a model, which is reported soon. One of no known model is left out."""
        if not model:
            return
        known = reason in generation_pb2.FailoverReason.values()
        name = generation_pb2.FailoverReason.Name(reason) if known else "UNKNOWN"
        status = http_status if 0 <= http_status <= _MAX_STATUS else 0
        failure = pb.ModelFailure(
            model=_printable(model), reason=name.removeprefix(_PREFIX), http_status=status
        )
        self._add(pb.RunEvent(model_failure=failure))

    def add_failed_attempt(self, event: GenerationEvent) -> None:
        """Add the failure that the router tells of while it makes a call, if the event is one."""
        if event.HasField("attempt_failed"):
            failed = event.attempt_failed
            self.add_failure(failed.model, failed.reason, failed.http_status)

    def add_broken_stream(self, error: MeshError, model: str) -> None:
        """Add the failure of the model whose stream broke, if the error says so.

        `model` is the one of the newest attempt, for an error that names none.
        """
        if error.reason is Reason.STREAM_BROKEN:
            reason = failover_reason(error.facts.get("failover_reason"))
            self.add_failure(str(error.facts.get("model") or model), reason)

    def add_decision(self, plugins: Sequence[str], **decision: Any) -> None:
        """Add what these plugins decided, a field of `HookDecision`, which is reported soon."""
        if plugins:
            decided = pb.HookDecision(plugins=plugins[:_MAX_PLUGINS], **decision)
            self._add(pb.RunEvent(hook_decision=decided))

    def add_turn_decision(self, plugins: Sequence[str], decided: pb.ChosenModel | pb.ChangedPrompt) -> None:
        """Add what these plugins decided about the request of a turn."""
        if isinstance(decided, pb.ChosenModel):
            self.add_decision(plugins, chosen_model=chosen_model(decided.model))
        else:
            self.add_decision(plugins, changed_prompt=decided)

    def _add(self, event: pb.RunEvent) -> None:
        self._events.append(event)
        self._settled.clear()
        self._changed.set()

    async def reported(self) -> None:
        """Return when the events so far were reported, or after a second.

        Call it before a request that gives the run up or ends it: after it, nothing can be reported
        at this epoch.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                await self._settled.wait()

    def close(self) -> None:
        """End `report` once all events were reported."""
        self._is_closed = True
        self._changed.set()

    async def report(self, call: Report, claimed: ClaimedRun) -> None:
        """Report events until `close`. Those that cannot be reported are lost."""
        number = claimed.run.reported_event_count + 1
        while self._events or not self._is_closed:
            await self._changed.wait()
            self._changed.clear()
            while self._events:
                batch = [self._events.popleft() for _ in range(min(_MAX_IN_CALL, len(self._events)))]
                request = pb.ReportRunEventsRequest(
                    epoch=claimed.run.epoch, first_number=number, events=batch
                )
                number += len(batch)
                try:
                    await call(request)
                except MeshError as error:
                    raise_if_cancelled()
                    _log.info("events of the run were not reported: %s", error.reason.value)
            self._settled.set()


def reported_events(
    events: RunEvents, call: Report, claimed: ClaimedRun
) -> AbstractAsyncContextManager[None]:
    """Report the events of the run during the block."""
    return side_task(
        events.report(call, claimed), events.close, "report events of the run", _LAST_CALL_SECONDS
    )


def chosen_model(name: str) -> pb.ChosenModel:
    """Return that a model was chosen, which may have any name."""
    return pb.ChosenModel(model=_printable(name))


def decided_call(tool_name: str) -> pb.DecidedCall:
    """Return that a call of the tool was decided about."""
    return pb.DecidedCall(tool_name=_printable(tool_name))


def approval_by(answer: DispatchBeforeToolCallResponse) -> tuple[str, ...]:
    """Return the plugins that want an approval of the call. Each plugin has given one answer."""
    if not answer.approval_reason:
        return ()
    return tuple(plugin for plugin in answer.decided_by if plugin not in answer.rewritten_by)


def _printable(name: str) -> str:
    """Return the name as the session service accepts it."""
    shown = "".join(char if char.isprintable() else "\ufffd" for char in name)
    return shown.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
