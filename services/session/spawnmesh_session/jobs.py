"""What happens after a session has ended, at least once each: files released, observers told."""

from dataclasses import dataclass

from procrastinate import App, BaseRetryStrategy, Blueprint, RetryDecision
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job
from psycopg import Error as DatabaseError
from spawnmesh.hook.v1.event_pb2 import SubagentEndedEvent
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs import JobArguments, enqueue
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_session.peers import AttachmentSets, Hooks

_PREFIX = "session"
_LONGEST_PAUSE_SECONDS = 300
_A_DAY_OF_PAUSES = 300


@dataclass(frozen=True, slots=True)
class Retry(BaseRetryStrategy):
    """Pauses that double from 2 s and stay short enough to be over soon after a peer is back."""

    max_attempts: int | None = None

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        """When to try again; None after `max_attempts`."""
        if self.max_attempts is not None and job.attempts >= self.max_attempts:
            return None
        return RetryDecision(retry_in={"seconds": min(2 ** min(job.attempts + 1, 30), _LONGEST_PAUSE_SECONDS)})


async def enqueue_release(app: App, connection: Connection, tenant_id: str, session_id: str, traceparent: str) -> None:
    """Releases the session's attachments after the transaction."""
    arguments = {"tenant_id": tenant_id, "session_id": session_id, "traceparent": traceparent}
    await _enqueue(app, connection, "release_attachments", arguments)


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
    await _enqueue(app, connection, "tell_subagent_ended", arguments)


async def _enqueue(app: App, connection: Connection, task: str, arguments: JobArguments) -> None:
    """As for every other statement of the transaction, what went wrong is the driver's own error: a lost race or connection, not a defect."""
    try:
        await enqueue(app, connection, f"{_PREFIX}:{task}", arguments)
    except ConnectorException as error:
        if isinstance(error.__cause__, DatabaseError):
            raise error.__cause__ from None
        raise


def add_tasks(app: App, sets: AttachmentSets, hooks: Hooks) -> None:
    """Gives the queue's worker what it needs to work on the jobs."""
    blueprint = Blueprint()

    @blueprint.task(name="release_attachments", retry=Retry())
    async def release_attachments(tenant_id: str, session_id: str, traceparent: str) -> None:
        with continue_trace(traceparent), acting_for(tenant_id):
            async with traced("release_attachments"):
                await sets.release(derived_id(IdKind.ATTACHMENT_SET, session_id))

    @blueprint.task(name="tell_subagent_ended", retry=Retry(max_attempts=_A_DAY_OF_PAUSES))
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
