"""The lease of a run: its heartbeats, and the interrupts that they bring."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable

from spawnmesh_client.run_context import RunContext
from spawnmesh_client.run_stops import RunGivenUp

PASSING = (Unavailable, DeadlineExceeded, ResourceExhausted, Cancelled)
"""The errors after which the same call may succeed later."""


class LeaseNotRenewed(Exception):
    """The heartbeats found no answer for as long as a lease lasts."""


class RunInterrupted(Exception):
    """A caller interrupted the run: it must be ended as INTERRUPTED."""


class RunLease:
    """Renew the lease and the token of a run, and stop its work when a caller interrupts it.

    `token` holds the token of the run, which each heartbeat may replace.
    """

    def __init__(self, context: RunContext, token: list[str]) -> None:
        self._context = context
        self._token = token
        self._is_due = asyncio.Event()
        context.is_interrupted = context.claimed.run.HasField("interrupt_time")
        self._scope: asyncio.Timeout | None = None

    def renew_soon(self) -> None:
        """Send the next heartbeat at once."""
        self._is_due.set()

    async def renew(self) -> None:
        """Send heartbeats until the task is cancelled.

        Raises LeaseNotRenewed, and the MeshError of a lease that is lost.
        """
        peer = self._context.mesh.wire.service("session")
        request = pb.HeartbeatRunRequest(epoch=self._context.claimed.run.epoch)
        lease_seconds = self._context.claimed.lease_ttl.ToMilliseconds() / 1000
        renewed, pause = monotonic_seconds(), lease_seconds / 3
        while True:
            await self._wait_until_due(pause)
            sent, inbox_read_count = monotonic_seconds(), self._context.inbox_read_count
            try:
                stub = RunServiceStub(peer.channel)
                answer = await peer.unary(stub.HeartbeatRun, request, timeout_seconds=lease_seconds / 3)
            except PASSING as error:
                pause = lease_seconds / 10
                if sent + lease_seconds / 3 + pause - renewed >= lease_seconds:
                    raise LeaseNotRenewed from error
            else:
                renewed, pause = sent, lease_seconds / 3
                self._token[0] = answer.run_token or self._token[0]
                self._obey(answer.interrupt, is_late=inbox_read_count != self._context.inbox_read_count)

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Cancel the block when a caller interrupts the run.

        Raises RunInterrupted if the run was interrupted before the block, or during a block that
        ended with an error: the cancellation may be its cause. A block without an error goes on.
        Raises RunGivenUp for any error of a block in which the run was given up.
        """
        if self._context.is_interrupted:
            raise RunInterrupted
        try:
            async with asyncio.timeout(None) as self._scope:
                try:
                    yield
                finally:
                    self._scope = None
        except Exception as error:
            if self._context.is_given_up:
                raise RunGivenUp from error
            if self._context.is_interrupted:
                raise RunInterrupted from error
            raise

    async def _wait_until_due(self, pause: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._is_due.wait()
        self._is_due.clear()

    def _obey(self, interrupt: "pb.Interrupt.ValueType", *, is_late: bool) -> None:
        """Cancel the work, or note the urgent message.

        A late answer may be about a message that the run has read meanwhile, so ask again.
        """
        if interrupt == pb.INTERRUPT_RUN and not self._context.is_interrupted:
            self._context.is_interrupted = True
            if self._scope is not None:
                self._scope.reschedule(asyncio.get_running_loop().time())
        if is_late and interrupt == pb.INTERRUPT_TURN:
            self.renew_soon()
        else:
            (self._context.urgent.set if interrupt == pb.INTERRUPT_TURN else self._context.urgent.clear)()
