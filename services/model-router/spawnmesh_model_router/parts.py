"""What model calls are made with."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opentelemetry.trace import Tracer
from spawnmesh_core.clock import Clock, Monotonic, monotonic_seconds, utc_now

from spawnmesh_model_router.availability import Availability
from spawnmesh_model_router.config import RouterConfig
from spawnmesh_model_router.providers.answer import Timing
from spawnmesh_model_router.providers.upstream import Upstream
from spawnmesh_model_router.router_metrics import RouterMetrics


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a candidate is asked."""

    timing: Timing
    tries_before_failover: int
    tries_at_last_candidate: int


@dataclass(frozen=True, slots=True)
class Parts:
    """Shared by all calls. `draw` gives numbers in [0, 1) for the jitter of retries."""

    config: RouterConfig
    availability: Availability
    upstreams: Mapping[str, Upstream]
    patience: Patience
    tracer: Tracer
    metrics: RouterMetrics
    clock: Clock = utc_now
    monotonic: Monotonic = monotonic_seconds
    draw: Callable[[], float] = random.random
