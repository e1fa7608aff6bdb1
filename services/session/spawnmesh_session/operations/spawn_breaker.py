"""A circuit breaker for spawns: in an outage they are refused before anything is made for them."""

from collections import OrderedDict
from dataclasses import dataclass

import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from spawnmesh_session.domain.spawns import STEPS, SpawnSpec

_FAILURES_TO_OPEN = 5
_OPEN_SECONDS = 1.0
_FORGET_SECONDS = 10.0
"""Failures that are older say nothing about a dependency now."""
_MAX_CIRCUITS = 10_000
_DEPENDENCY = "dependency"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The needs of a spawn. A tenant's outage is none of the spawns of other tenants."""

    tenant_id: str
    has_files: bool
    is_fork: bool


@dataclass(slots=True)
class _Circuit:
    """The failures in a row, and the step and the dependency of the last one."""

    failure_count: int
    step: str
    dependency: str
    failed_at: float
    next_trial: float


class SpawnBreaker:
    """Remembers which spawns would fail now, because the last ones of the same kind met an outage.

    A kind is the tenant, and whether a spawn has files and is a fork. After five failures in a row
    one spawn a second is tried, and each of the others is refused. A spawn that gets an answer of
    the step that failed ends that, whatever the answer is. So do ten seconds without a failure.
    """

    def __init__(self, monotonic: Monotonic = monotonic_seconds) -> None:
        self._monotonic = monotonic
        self._circuits: OrderedDict[_Kind, _Circuit] = OrderedDict()

    def refusal(self, tenant_id: str, spec: SpawnSpec) -> MeshError | None:
        """Return the refusal of a spawn that is not begun; None if it may begin."""
        circuit = self._open_circuit(tenant_id, spec)
        if circuit is None or self._monotonic() >= circuit.next_trial:
            return None
        return MeshError(
            Reason.SPAWN_FAILED,
            f"the spawn was not begun: {circuit.dependency} does not answer;"
            " repeat the call with the same request_id",
            status=Status.UNAVAILABLE,
            retry_after_seconds=_OPEN_SECONDS,
            facts={_DEPENDENCY: circuit.dependency, "cause": Reason.DEPENDENCY_UNAVAILABLE},
        )

    def begun(self, tenant_id: str, spec: SpawnSpec) -> None:
        """Note that a spawn has begun. If spawns are refused, it is the trial of this second."""
        circuit = self._open_circuit(tenant_id, spec)
        if circuit is not None:
            circuit.next_trial = self._monotonic() + _OPEN_SECONDS

    def failed(self, tenant_id: str, spec: SpawnSpec, step: str, error: MeshError) -> None:
        """Note that a step failed. Only a dependency that does not answer is an outage."""
        dependency = error.facts.get(_DEPENDENCY)
        if not dependency or error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
            self._answered(tenant_id, spec, step)
            return
        kind, now = _kind_of(tenant_id, spec), self._monotonic()
        known = self._current(kind, now)
        failure_count = 1 + (known.failure_count if known else 0)
        self._circuits[kind] = _Circuit(failure_count, step, dependency, now, now + _OPEN_SECONDS)
        self._circuits.move_to_end(kind)
        if failure_count == _FAILURES_TO_OPEN:
            log.warning("spawns_refused", tenant=tenant_id, dependency=dependency)
        if len(self._circuits) > _MAX_CIRCUITS:
            self._circuits.popitem(last=False)

    def succeeded(self, tenant_id: str, spec: SpawnSpec) -> None:
        """Note that the spawn succeeded."""
        self._answered(tenant_id, spec, STEPS[-1])

    def _answered(self, tenant_id: str, spec: SpawnSpec, step: str) -> None:
        """Close the circuit if the spawn came as far as the step that had failed."""
        kind = _kind_of(tenant_id, spec)
        circuit = self._circuits.get(kind)
        if circuit is not None and STEPS.index(step) >= STEPS.index(circuit.step):
            del self._circuits[kind]

    def _open_circuit(self, tenant_id: str, spec: SpawnSpec) -> _Circuit | None:
        circuit = self._current(_kind_of(tenant_id, spec), self._monotonic())
        return circuit if circuit is not None and circuit.failure_count >= _FAILURES_TO_OPEN else None

    def _current(self, kind: _Kind, now: float) -> _Circuit | None:
        circuit = self._circuits.get(kind)
        return circuit if circuit is not None and now - circuit.failed_at < _FORGET_SECONDS else None


def _kind_of(tenant_id: str, spec: SpawnSpec) -> _Kind:
    return _Kind(tenant_id, bool(spec.attachment_count), spec.context == "FORK")
