"""Count the model calls of runs in the budgets that their sessions share."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidRequest,
    MeshError,
    NotFound,
    Unavailable,
    error_label,
    unavailable,
)
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.interceptors.deadline import context_without_deadline

from spawnmesh_model_router.clients.session_budgets import SessionBudgets
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.errors import budgets_unreachable
from spawnmesh_model_router.domain.run_calls import RunCall

_ADMIT_PAUSES_SECONDS = (0.1, 0.4)
"""Between the tries to admit a call. Its caller can call again later."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_FINISH_SECONDS = 3.0

_UNANSWERED = (Unavailable, DeadlineExceeded, Cancelled)
"""The errors of a call that may be repeated at once: it may have had its effect."""
_UNCERTAIN = (*_UNANSWERED, InternalError)
_FINAL = (InvalidRequest, NotFound, FailedPrecondition)
"""The errors that a repeat would get again."""

log = structlog.get_logger()


class RunBudgets:
    """Begins the calls that count in budgets, and owns what is left to record of them.

    `client` is None in a process that knows no session service.
    """

    def __init__(self, client: SessionBudgets | None) -> None:
        self.client = client
        self._is_closing = asyncio.Event()
        # `finish` owns these tasks. They outlive their calls.
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, call: RunCall | None) -> "BudgetedCall":
        """Return the call, not admitted. None is a call that counts in no budget."""
        return BudgetedCall(self, call)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do the work, also if its caller leaves meanwhile or its deadline passes."""
        task = asyncio.create_task(work, context=context_without_deadline())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def pause(self, seconds: float) -> None:
        """Wait so long, or a moment only if the process stops."""
        if self._is_closing.is_set():
            await asyncio.sleep(min(seconds, _FIRST_PAUSE_SECONDS))
            return
        try:
            async with asyncio.timeout(seconds):
                await self._is_closing.wait()
        except TimeoutError:
            return

    async def finish(self) -> None:
        """Wait until all calls are recorded, for a few seconds.

        A call that is not recorded then counts with the most that it may have used.
        """
        self._is_closing.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=_FINISH_SECONDS)
        for task in late:
            task.cancel()
        if late:
            log.warning("model_calls_not_recorded", count=len(late))
            await asyncio.gather(*late, return_exceptions=True)


class BudgetedCall:
    """A model call on its way through the budgets: admitted once, then recorded once.

    Does nothing for a call that counts in no budget.
    """

    def __init__(self, budgets: RunBudgets, call: RunCall | None) -> None:
        self._budgets = budgets
        self._call = call
        self._may_be_counted = False
        self._admission: asyncio.Task[None] | None = None
        self._is_tried = asyncio.Event()
        self._is_tried.set()
        self._expiry = monotonic_seconds() + (call.expires_in_seconds if call is not None else 0.0)

    async def admit(self) -> None:
        """Count the call before any provider is called.

        Raises MeshError SESSION_BUDGET_EXCEEDED and RUN_LEASE_LOST of the session service, and
        DEPENDENCY_UNAVAILABLE if it does not answer. If it raises or is cancelled, call `record`:
        the call may be counted.
        """
        if self._call is None:
            return
        if (client := self._budgets.client) is None:
            raise budgets_unreachable()
        self._may_be_counted = True
        # It is not cancelled with the caller: a record that came before it would change nothing.
        self._admission = self._budgets.start(_admit(client, self._call))
        try:
            await asyncio.shield(self._admission)
        except MeshError as refusal:
            self._may_be_counted = isinstance(refusal, _UNCERTAIN)
            raise

    def record(self, charged: ChargedUsage) -> None:
        """Begin to record what all attempts of the call used. Only the first record counts.

        It is repeated until the call expires. `recorded` waits for the first try.
        """
        if self._call is not None and self._budgets.client is not None and self._may_be_counted:
            self._may_be_counted = False
            self._is_tried.clear()
            self._budgets.start(self._record(self._budgets.client, self._call, charged))

    async def recorded(self) -> None:
        """Wait until the usage is recorded, or one attempt has failed: then the call goes on
        without it.
        """
        await self._is_tried.wait()

    async def _record(self, client: SessionBudgets, call: RunCall, charged: ChargedUsage) -> None:
        pause = _FIRST_PAUSE_SECONDS
        try:
            if self._admission is not None:
                # Its error is for the caller, who may have left.
                await asyncio.gather(self._admission, return_exceptions=True)
            while True:
                try:
                    await client.record(call, charged)
                    return
                except MeshError as error:
                    left = self._expiry - monotonic_seconds()
                    if isinstance(error, _FINAL) or left <= 0:
                        log.warning("model_call_not_recorded", error=error_label(error))
                        return
                self._is_tried.set()
                await self._budgets.pause(min(pause, left))
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        finally:
            self._is_tried.set()


async def _admit(client: SessionBudgets, call: RunCall) -> None:
    for pause in (*_ADMIT_PAUSES_SECONDS, None):
        try:
            await client.admit(call)
        except MeshError as error:
            if not isinstance(error, _UNANSWERED) and error.reason is not Reason.CONFLICT:
                raise
            if pause is None:
                raise unavailable("session") from error
            await asyncio.sleep(pause)
        else:
            return
