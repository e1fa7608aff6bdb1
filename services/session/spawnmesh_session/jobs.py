"""What happens after a session has ended, at least once each: files released, observers told."""

from procrastinate import App, Blueprint, RetryStrategy
from spawnmesh.hook.v1.event_pb2 import SubagentEndedEvent
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs import enqueue
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_session.peers import AttachmentSets, Hooks

_RETRY = RetryStrategy(max_attempts=60, wait=1, exponential_wait=2)
_PREFIX = "session"


async def enqueue_release(app: App, connection: Connection, tenant_id: str, session_id: str, traceparent: str) -> None:
    """Releases the session's attachments after the transaction."""
    arguments = {"tenant_id": tenant_id, "session_id": session_id, "traceparent": traceparent}
    await enqueue(app, connection, f"{_PREFIX}:release_attachments", arguments)


async def enqueue_ended(
    app: App,
    connection: Connection,
    tenant_id: str,
    session_id: str,
    *,
    run_id: str,
    parent_session_id: str,
    outcome: str,
    traceparent: str,
) -> None:
    """Tells the observers of the session's end after the transaction."""
    arguments = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "run_id": run_id,
        "parent_session_id": parent_session_id,
        "outcome": outcome,
        "traceparent": traceparent,
    }
    await enqueue(app, connection, f"{_PREFIX}:tell_subagent_ended", arguments)


def add_tasks(app: App, sets: AttachmentSets, hooks: Hooks) -> None:
    """Gives the queue's worker what it needs to work on the jobs."""
    blueprint = Blueprint()

    @blueprint.task(name="release_attachments", retry=_RETRY)
    async def release_attachments(tenant_id: str, session_id: str, traceparent: str) -> None:
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("release_attachments"):
                await sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))

    @blueprint.task(name="tell_subagent_ended", retry=_RETRY)
    async def tell_subagent_ended(
        tenant_id: str, session_id: str, run_id: str, parent_session_id: str, outcome: str, traceparent: str
    ) -> None:
        event = SubagentEndedEvent(
            session_id=session_id,
            run_id=run_id,
            parent_session_id=parent_session_id,
            outcome=outcome,
            event_key=f"subagent_ended:v1:{session_id}:{run_id}",
        )
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("tell_subagent_ended"):
                await hooks.subagent_ended(event)

    app.add_tasks_from(blueprint, namespace=_PREFIX)
