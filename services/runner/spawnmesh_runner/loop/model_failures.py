"""Tell the watchers of the session which models failed, while the run goes on."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.session.v1 import model_failure_pb2 as pb
from spawnmesh.session.v1.run_service_pb2 import ClaimedRun
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import call_with_retry

_MAX_IN_CALL = 32
# A run waits so long before its end for reports that are under way.
_LAST_CALL_SECONDS = 1.0
_PREFIX = "FAILOVER_REASON_"
_MAX_NAME_BYTES, _MAX_STATUS = 256, 999

log = structlog.get_logger()


class ModelFailures:
    """The failures of a run's models that were not reported yet."""

    def __init__(self) -> None:
        self._failures: deque[pb.ModelFailure] = deque()
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        self._settled.set()
        self._is_closed = False

    def add(
        self, model: str, reason: "generation_pb2.FailoverReason.ValueType", http_status: int = 0
    ) -> None:
        """Add a failure, which is reported soon. One of no known model is left out."""
        if not model or len(model.encode()) > _MAX_NAME_BYTES:
            return
        known = reason in generation_pb2.FailoverReason.values()
        name = generation_pb2.FailoverReason.Name(reason) if known else "UNKNOWN"
        status = http_status if 0 <= http_status <= _MAX_STATUS else 0
        failure = pb.ModelFailure(model=model, reason=name.removeprefix(_PREFIX), http_status=status)
        self._failures.append(failure)
        self._settled.clear()
        self._changed.set()

    async def reported(self) -> None:
        """Return when the failures so far were reported, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                await self._settled.wait()

    def close(self) -> None:
        """End `report` once all failures were reported."""
        self._is_closed = True
        self._changed.set()

    async def report(self, peers: Peers, claimed: ClaimedRun) -> None:
        """Report failures until `close`. Those that cannot be reported are lost."""
        number = claimed.run.model_failure_count + 1
        while self._failures or not self._is_closed:
            await self._changed.wait()
            self._changed.clear()
            while self._failures:
                batch = [self._failures.popleft() for _ in range(min(_MAX_IN_CALL, len(self._failures)))]
                request = pb.ReportModelFailuresRequest(
                    epoch=claimed.run.epoch, first_number=number, failures=batch
                )
                number += len(batch)
                try:
                    await call_with_retry(peers.session, peers.runs.ReportModelFailures, request)
                except MeshError as error:
                    raise_if_cancelled()
                    log.info("model failures not reported", reason=error.reason.value)
            self._settled.set()


@asynccontextmanager
async def reported_failures(
    failures: ModelFailures, peers: Peers, claimed: ClaimedRun
) -> AsyncIterator[None]:
    """Report the failures of the run's models during the block."""
    task = asyncio.create_task(failures.report(peers, claimed), name="report model failures")
    try:
        yield
    finally:
        failures.close()
        try:
            await asyncio.wait({task}, timeout=_LAST_CALL_SECONDS)
        finally:
            task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            log.error("model failures not reported", exc_info=ended)
