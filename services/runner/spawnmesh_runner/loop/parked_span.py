"""The span of a run, or of a call of it, that this runner gave up."""

from opentelemetry.trace import Span
from spawnmesh_runtime.telemetry import mark_failed

from spawnmesh_runner.domain.tools import RunParked


def note_parked(span: Span, parked: RunParked) -> None:
    """Record that for which the run waits. Only a run that failed with that is an error."""
    if parked.approval_id:
        span.set_attribute("spawnmesh.approval.id", parked.approval_id)
    if parked.budget_session_id:
        span.set_attribute("spawnmesh.budget.session_id", parked.budget_session_id)
    if parked.error_reason:
        mark_failed(span, parked.error_reason)
