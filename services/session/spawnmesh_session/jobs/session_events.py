"""The handler of the jobs of `operations.session_event_jobs`, and the times of all events."""

from dataclasses import dataclass

from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import ClaimedJob

from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.domain.enabled_hooks import Hook
from spawnmesh_session.store.enabled_hooks import get_enabled_hooks

_COMMON = ("session_id", "run_id", "agent_id", "event_time")
"""The arguments that are fields of each event. The others are fields of its kind."""


@dataclass(frozen=True, slots=True)
class SessionEventPublisher:
    """Publishes changes of sessions, each at least once."""

    database: Database
    hooks: Hooks

    async def publish_session_event(self, job: ClaimedJob) -> None:
        """Publish the event of the job, if an observer may be there to hear it."""
        kind, _, identity = job.key.partition(":")
        if Hook(kind.upper()) not in await get_enabled_hooks(self.database, job.tenant_id):
            return
        common = {name: job.arguments[name] for name in _COMMON}
        fields = {name: value for name, value in job.arguments.items() if name not in _COMMON}
        document = {"event_key": f"{kind}:v1:{identity}", **common, kind: fields}
        await self.hooks.publish([ParseDict(document, ObservedEvent())])


def event_time_of(job: ClaimedJob) -> Timestamp:
    """Return the time of the job's event."""
    event_time = Timestamp()
    event_time.FromJsonString(job.arguments["event_time"])
    return event_time
