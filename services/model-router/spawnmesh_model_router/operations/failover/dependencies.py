"""The dependencies of the failover chain."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opentelemetry.trace import Tracer
from spawnmesh_core.clock import Clock, Monotonic, monotonic_seconds, utc_now

from spawnmesh_model_router.clients.providers.upstream import Upstream
from spawnmesh_model_router.domain.answer import StreamTimeouts
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.metrics import RouterMetrics
from spawnmesh_model_router.operations.failover.availability import Availability
from spawnmesh_model_router.operations.request_threads import RequestThreads
from spawnmesh_model_router.operations.trace_content import TraceContent


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The timeouts and the number of calls of a candidate."""

    timeouts: StreamTimeouts
    tries_before_failover: int
    tries_at_last_candidate: int


@dataclass(frozen=True, slots=True)
class ChainDependencies:
    """Shared by all calls. `draw` returns random numbers in [0, 1) for the jitter of retries.

    Without `trace_content`, no span has content.
    """

    config: RouterConfig
    availability: Availability
    upstreams: Mapping[str, Upstream]
    threads: RequestThreads
    retries: RetrySettings
    tracer: Tracer
    metrics: RouterMetrics
    trace_content: TraceContent | None = None
    clock: Clock = utc_now
    monotonic: Monotonic = monotonic_seconds
    draw: Callable[[], float] = random.random

    def deadline_after(self, remaining_seconds: float | None) -> float:
        """Return when a call ends that has this time left; infinity if it has no deadline."""
        return math.inf if remaining_seconds is None else self.monotonic() + remaining_seconds
